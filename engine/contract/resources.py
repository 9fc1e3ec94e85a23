"""What a run may use: rollout engines and their scheduler, sandbox, scoring, learner.

Leaves out defaults that depend on the machine: those are said where they are decided.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from engine.contract.base import Share, Strict
from sandbox.contract import Limits


class StaticScheduler(Strict):
    """Equal counts: every rollout is bound to an engine before the batch begins. The usual way, for comparison."""

    kind: Literal["static"]


class KvCapScheduler(Strict):
    """The paper's rule (section 3): as many rollouts an engine as its KV cache holds at their greatest length."""

    kind: Literal["kv_cap"]


class AimdScheduler(Strict):
    """By utilisation: more in flight while the KV cache has room, fewer when it was too full (prime-rl's rule)."""

    kind: Literal["aimd"]
    grow: float = Field(default=1.25, gt=1, description="Factor of the cap a turnover while KV use is under `low`.")
    cut: float = Field(default=0.8, gt=0, lt=1, description="Factor of the cap after a preemption.")
    low: Share = Field(default=0.6, description="KV use under which the cap grows.")
    high: Share = Field(default=0.8, description="KV use over which nothing is admitted.")


class GrowthScheduler(Strict):
    """By expected growth: the KV that those in flight will come to need, from the lengths seen in this run."""

    kind: Literal["growth"] = "growth"
    preemption_chance: float = Field(
        default=0.01, gt=0, lt=0.5, description="Largest chance that what is admitted outgrows an engine's KV cache."
    )


Scheduling = Annotated[StaticScheduler | KvCapScheduler | AimdScheduler | GrowthScheduler, Field(discriminator="kind")]


class RolloutResources(Strict):
    """Processes that sample."""

    kind: Literal["vllm", "sglang", "openai", "scripted"] = Field(
        default="vllm",
        description="`vllm`: started here. `sglang`, `openai`: servers at `urls`. `scripted` is for tests: no model.",
    )
    engines: PositiveInt = Field(default=1, description="Rollout engine processes.")
    urls: tuple[str, ...] = Field(
        default=(), description="Servers of `sglang` or `openai`, one engine each: http(s)://host:port[/path]."
    )
    served_model: str = Field(default="policy", description="What an `openai` server calls its model.")
    key_variable: str | None = Field(
        default=None, pattern=r"^[A-Za-z_]\w*$", description="Environment variable that holds the servers' key."
    )
    scheduler: Scheduling = GrowthScheduler()
    load_every_s: PositiveFloat = Field(default=10, description="Seconds between `engine.load` events while sampling.")
    kv_cache_mb: PositiveInt = Field(default=256, description="KV cache of each engine, MiB.")
    max_running: PositiveInt = Field(default=256, description="Most rollouts in flight in one engine.")
    retries: int = Field(default=2, ge=0, description="Times a rollout that we spoiled is done again.")
    start_timeout_s: PositiveFloat = Field(default=300, description="Seconds an engine may take to start.")
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="Number format of the engines' weights.")
    weights: Literal["broadcast", "file"] = Field(
        default="broadcast",
        description="How new weights reach vLLM: a process group, or a file that every engine can read.",
    )

    @model_validator(mode="after")
    def _addressed(self) -> Self:
        elsewhere = self.kind in ("sglang", "openai")
        if elsewhere != bool(self.urls):
            wants = "at least one of urls" if elsewhere else "no urls: its engines are started here"
            raise ValueError(f"kind {self.kind} wants {wants}")
        wrong = [url for url in self.urls if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", url)]
        if wrong:
            raise ValueError(f"urls: {wrong[0]!r} is no http(s)://host:port[/path]")
        return self


class SandboxResources(Strict):
    """Where tool calls run: a private node, or the sandbox that `--sandbox` names."""

    slots: PositiveInt = Field(default=4, description="Programs run at the same time; a private node's only.")
    limits: Limits = Limits(wall_s=5, cpu_s=5, memory_mb=512)


class ScoringResources(Strict):
    """Where rewards are computed. The verdicts are the same; in the sandbox no answer can hold the engine up."""

    where: Literal["engine", "sandbox"] = Field(default="engine", description="The engine's threads, or the sandbox.")
    wall_s: PositiveFloat = Field(default=10, le=3600, description="Seconds that a call of the sandbox may take.")
    batch: PositiveInt = Field(default=64, description="Answers in one call of the sandbox.")


class LearnerResources(Strict):
    """The processes that train."""

    ranks: PositiveInt = Field(default=1, description="Learner processes on this machine; each takes a share.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="`auto` takes a GPU where torch finds one (ROCm calls it cuda too)."
    )
    threads: PositiveInt = Field(
        default=1,
        description="OpenMP threads of each rank. More help on idle cores only: beside other work they spin.",
    )
    precision: Literal["fp32", "bf16"] = Field(
        default="fp32", description="Number format of the pass; with bf16 the optimizer keeps fp32 masters."
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        default=1,
        description="DeepSpeed ZeRO: 1 shards optimizer state, 2 gradients too, 3 weights too. Muon: 0, bf16: 1.",
    )
    offload_optimizer: bool = Field(
        default=False, description="Keep optimizer state in main memory, with DeepSpeed's CPU Adam (ZeRO 1 to 3)."
    )
    activation_checkpointing: bool = Field(
        default=False, description="Recompute activations in the backward pass: less memory, a fifth more time."
    )
    micro_batch_tokens: PositiveInt = Field(default=8192, description="Packed tokens of one forward pass on one rank.")
    logits_chunk_tokens: PositiveInt = Field(
        default=4096, description="Trained tokens whose logits over the vocabulary exist at one time."
    )

    @model_validator(mode="after")
    def _offloads(self) -> Self:
        if self.offload_optimizer and self.zero_stage == 0:
            raise ValueError("offload_optimizer wants zero_stage 1 to 3: at 0 DeepSpeed keeps no optimizer of its own")
        return self
