"""How fields of a recipe are called on pages: the field's standard terms, spelled as people spell them."""

UNITS = {"_s": "s", "_mb": "MiB", "_bytes": "bytes", "_chars": "characters"}
"""Endings of names that are units."""

_WHOLE = {
    "stages": "Stages",
    "rollout": "Rollout engines",
    "urls": "Addresses of servers",
    "load_every_s": "Load told every",
    "preemption_chance": "Chance of preemption",
    "grow": "Growth of the cap",
    "cut": "Cut of the cap",
    "low": "KV use under which the cap grows",
    "high": "KV use over which nothing is admitted",
    "engines": "Engines",
    "learner": "Learner",
    "cpu_s": "CPU time",
    "wall_s": "Wall time",
    "memory_mb": "Memory",
    "scratch_mb": "Scratch space",
    "eps": "Epsilon",
    "count": "Problems",
    "path": "Folder",
    "planted": "Planted errors",
    "trained": "What is trained",
    "max_running": "Most rollouts in flight",
    "slots": "Programs at once",
    "ffn_size": "Feed-forward size",
    "heads": "Attention heads",
    "betas": "Adam betas",
}
_WORDS = {
    "cpu": "CPU",
    "adamw": "AdamW",
    "ddof": "degrees of freedom",
    "grad": "gradient",
    "json": "JSON",
    "kl": "KL",
    "kv": "KV",
    "logprob": "log-probability",
    "rl": "RL",
    "sft": "SFT",
    "vocab": "vocabulary",
    "warmup": "warm-up",
}


def unit_of(name: str) -> str:
    """The unit that a field's name ends with; empty where its description has to say it."""
    return next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def label_of(name: str) -> str:
    """``kv_cache_mb`` -> ``KV cache``: its unit stands apart."""
    if name in _WHOLE:
        return _WHOLE[name]
    ending = next((ending for ending in UNITS if name.endswith(ending)), "")
    words = [_WORDS.get(word, word) for word in name.removesuffix(ending).split("_")]
    first, *others = words
    return " ".join([first[:1].upper() + first[1:], *others])


_KINDS = {
    "tiny-qwen3": "Tiny Qwen3, made from nothing",
    "folder": "A model folder",
    "arithmetic": "Generated arithmetic",
    "file": "A file",
    "roc": "RoC (Resampling on Correct)",
    "all": "Every weight",
    "lora": "LoRA adapters",
    "static": "Static: equal counts",
    "kv_cap": "KV cap: what fits at greatest length (the paper's)",
    "aimd": "By utilisation",
    "growth": "By expected growth",
    "wait": "Wait for all",
    "carry": "Carry into the next step",
    "cut": "Cut (biased, for comparison)",
}


def kind_label_of(kind: str) -> str:
    """One of several forms of something, as a choice."""
    return _KINDS.get(kind, label_of(kind))
