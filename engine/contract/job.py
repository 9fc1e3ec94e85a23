"""A recipe (what a person writes, TOML) and a job (what an engine runs, JSON): the public door of the engine.

Every field carries its unit and meaning once, here; forms, command-line help and documentation are made from it.
Leaves out defaults that depend on the machine: those are said where they are decided.
"""

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from engine.contract.base import Strict
from sandbox.contract import Limits

Share = Annotated[float, Field(ge=0, le=1)]
Operations = Annotated[
    dict[Annotated[int, Field(ge=1, le=6)], PositiveFloat],
    Field(min_length=1, description="Number of chained operations -> relative weight (arithmetic problems)."),
]


class RecipeError(Exception):
    """A recipe that cannot be run; ``problems`` names every wrong field and what was expected."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}:\n" + "\n".join(f"  {problem}" for problem in problems))
        self.problems = problems


def from_recipe_folder(path: Path, info: ValidationInfo) -> Path:
    """An absolute path: the resolved recipe in a run folder must mean the same from anywhere."""
    folder = (info.context or {}).get("folder")
    return (folder / path).resolve() if folder else path


class TinyModel(Strict):
    """A Qwen3-architecture model made from nothing, with its own byte-level BPE tokenizer."""

    kind: Literal["tiny-qwen3"]
    vocab_size: int = Field(default=1024, ge=300, description="Tokens; 256 of them are bytes.")
    hidden_size: PositiveInt = Field(default=128, description="Width of the residual stream.")
    layers: PositiveInt = Field(default=3, description="Transformer blocks.")
    heads: PositiveInt = Field(default=4, description="Attention heads, as many key/value heads.")
    ffn_size: PositiveInt = Field(default=384, description="Width of the feed-forward layer.")
    context_tokens: int = Field(default=512, ge=64, description="Longest prompt and response together, tokens.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of heads {self.heads}")
        return self


class FolderModel(Strict):
    """A Hugging Face folder: config.json, model.safetensors, tokenizer.json with the protocol's tags."""

    kind: Literal["folder"]
    path: Path = Field(description="Folder of the model; a relative path is taken from the recipe's folder.")
    context_tokens: int = Field(default=512, ge=64, description="Longest prompt and response together, tokens.")

    @field_validator("path")
    @classmethod
    def _from_recipe(cls, path: Path, info: ValidationInfo) -> Path:
        return from_recipe_folder(path, info)

    @model_validator(mode="after")
    def _exists(self, info: ValidationInfo) -> Self:
        """Not asked of a job that is only looked at (context ``elsewhere``): its run may be another machine's."""
        if (info.context or {}).get("elsewhere"):
            return self
        missing = [n for n in ("config.json", "tokenizer.json") if not (self.path / n).is_file()]
        if missing:
            raise ValueError(f"{self.path} is no model folder: {', '.join(missing)} missing")
        return self


Model = Annotated[TinyModel | FolderModel, Field(discriminator="kind")]


class ArithmeticProblems(Strict):
    """Generated problems whose answer a short Python program computes (``engine.data.arithmetic``)."""

    kind: Literal["arithmetic"] = "arithmetic"
    operations: Operations = Field(default={1: 0.45, 2: 0.4, 3: 0.15})


class FileProblems(Strict):
    """Problems from a JSONL file with ``problem`` and ``answer`` in every line."""

    kind: Literal["file"]
    path: Path = Field(description="JSONL file; a relative path is taken from the recipe's folder.")

    @field_validator("path")
    @classmethod
    def _from_recipe(cls, path: Path, info: ValidationInfo) -> Path:
        return from_recipe_folder(path, info)


Problems = Annotated[ArithmeticProblems | FileProblems, Field(discriminator="kind")]


class PlantedErrors(Strict):
    """How the SFT trajectories go wrong on purpose: RL is then seen to remove what is planted here."""

    wrong_operation: Share = Field(default=0.3, description="Probability that an operation is computed wrongly.")
    buggy_call: Share = Field(default=0.4, description="Probability that the first program fails.")
    invalid_json: Share = Field(default=0.05, description="Probability that a tool call is not valid JSON.")
    buggy_retry: Share = Field(default=0.3, description="Probability that a retry fails again.")
    give_up: Share = Field(default=0.15, description="Probability of guessing after a failed call.")
    no_tool: Share = Field(default=0.05, description="Probability of guessing without any call.")
    doubled_answer: Share = Field(default=0.08, description="Probability that the answer is given twice.")


class Stage(Strict):
    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]{0,40}$",
        description="Small letters, digits and hyphens; unique within the recipe.",
    )


class RolloutStage(Stage):
    """What stages that sample have in common: how long a rollout may get and how hot it is."""

    max_response_tokens: PositiveInt = Field(description="Longest response, tool tokens included.")
    max_turns: PositiveInt = Field(default=6, description="Most assistant turns.")
    max_calls_per_turn: PositiveInt = Field(default=4, description="Tool calls run in one turn; others are refused.")
    tool_response_chars: PositiveInt = Field(default=200, description="Tool text over this is cut in its middle.")
    temperature: PositiveFloat = Field(default=1.0, description="Sampling temperature; top-p and top-k stay off.")


class EveryWeight(Strict):
    """Train every weight."""

    kind: Literal["all"] = "all"


class Lora(Strict):
    """Train low-rank adapters (arXiv 2106.09685) of the linear layers only; what is exported and served is merged."""

    kind: Literal["lora"] = "lora"
    rank: PositiveInt = Field(default=16, description="Rank of the adapters.")
    alpha: PositiveFloat = Field(default=32, description="The adapters' product is scaled by alpha / rank.")


Trained = Annotated[EveryWeight | Lora, Field(discriminator="kind")]


class TrainedStage(Stage):
    """What stages that change the weights have in common: optimizer, schedule, checkpoints."""

    steps: PositiveInt
    optimizer: Literal["adamw", "muon"] = Field(
        default="adamw", description="`muon` for the layers' matrices, with Adam for embeddings, norms and head."
    )
    learning_rate: PositiveFloat = Field(default=1e-6, description="Adam's rate.")
    muon_learning_rate: PositiveFloat = Field(default=0.02, description="Muon's rate; unused with `adamw`.")
    betas: tuple[Share, Share] = Field(default=(0.9, 0.95), description="Adam's moments.")
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay, of the rate.")
    max_grad_norm: PositiveFloat = Field(default=1.0, description="Gradient clipping, global 2-norm.")
    warmup_steps: int = Field(default=0, ge=0, description="Linear warm-up, steps of the stage.")
    schedule: Literal["linear", "cosine"] = Field(default="linear", description="Form of the decay after warm-up.")
    decay_share: Share = Field(default=0.0, description="Last share of the steps with a decay to 0; 0 is constant.")
    trained: Trained = EveryWeight()
    skips_to_pause: PositiveInt = Field(
        default=3, description="Updates in a row with a loss that is not finite before the run pauses itself."
    )
    checkpoint_every: PositiveInt = Field(default=1, description="Steps between checkpoints.")
    checkpoints_kept: PositiveInt = Field(default=2, description="Newest checkpoints of the stage kept while it runs.")
    best_by: str | None = Field(
        default=None,
        pattern=r"^-?[a-z][a-z0-9_@]{0,40}$",
        description="Metric of `step.finished` whose best checkpoint is kept too (`-name`: smallest is best).",
    )

    @property
    def lora(self) -> Lora | None:
        """The adapters' settings; None where every weight is trained."""
        return self.trained if isinstance(self.trained, Lora) else None


class SftStage(TrainedStage):
    """Supervised fine-tuning on generated, unfiltered trajectories (non-reasoning SFT of the paper)."""

    kind: Literal["sft"]
    steps: PositiveInt = Field(description="Optimizer steps.")
    optimizer: Literal["adamw", "muon"] = Field(
        default="muon", description="`muon` for the layers' matrices, with Adam for embeddings, norms and head."
    )
    examples: PositiveInt = Field(default=4000, description="Trajectories generated.")
    problems: ArithmeticProblems = ArithmeticProblems()
    planted: PlantedErrors = PlantedErrors()
    batch_size: PositiveInt = Field(default=24, description="Trajectories a step.")
    max_tokens: PositiveInt = Field(default=320, description="Longer trajectories are left out, prompt included.")
    learning_rate: PositiveFloat = Field(default=4e-3, description="Adam's rate for embeddings, norms and head.")
    betas: tuple[Share, Share] = Field(default=(0.9, 0.98), description="Adam's moments.")
    warmup_steps: int = Field(default=30, ge=0, description="Linear warm-up, steps.")
    decay_share: Share = Field(default=0.4, description="Last share of the steps with a decay to 0; 0 is constant.")
    checkpoint_every: PositiveInt = Field(default=50, description="Steps between checkpoints.")


class RocDownsampling(Strict):
    """Resampling on Correct, the paper's section 2.2."""

    kind: Literal["roc"] = "roc"
    mode: Literal["drawn", "sorted"] = Field(default="drawn", description="`sorted` is the release's rule.")
    min_per_class: int = Field(default=1, ge=0, description="Least rollouts kept of each class.")
    eps: PositiveFloat = Field(default=0.05, description="Added to the penalty before its inverse is taken.")


class UniformDownsampling(Strict):
    """The same quotas as RoC without its penalties: the control."""

    kind: Literal["uniform"]
    min_per_class: int = Field(default=1, ge=0, description="Least rollouts kept of each class.")


class BalancedDownsampling(Strict):
    """As many wrong rollouts as right ones: the smaller class stays whole, the other is drawn down to it."""

    kind: Literal["balanced"]


class KeepAll(Strict):
    """Plain GRPO: every rollout of a group with unequal rewards."""

    kind: Literal["keep_all"]


Downsampling = Annotated[
    RocDownsampling | UniformDownsampling | BalancedDownsampling | KeepAll, Field(discriminator="kind")
]


class RlStage(RolloutStage, TrainedStage):
    """GRPO-RoC with the Python tool."""

    kind: Literal["rl"]
    steps: PositiveInt = Field(description="Rollout batches, each with its update.")
    problems: Problems = ArithmeticProblems()
    problems_per_step: PositiveInt = Field(default=12, description="Groups a step.")
    rollouts_per_problem: int = Field(default=16, ge=2, description="Rollouts sampled in a group (the paper's 2G).")
    keep_per_problem: PositiveInt = Field(default=8, description="Rollouts kept in a group (the paper's G).")
    downsampling: Downsampling = RocDownsampling()
    refill: int = Field(
        default=0,
        ge=0,
        description="Most extra rollout batches a step that replace groups without contrast (dynamic sampling).",
    )
    advantage_norm: Literal["std", "none"] = Field(default="std", description="`none` is Dr. GRPO.")
    advantage_ddof: Literal[0, 1] = Field(default=0, description="1 divides by the sample's std, as the release does.")
    penalty_in_reward: float = Field(
        default=0.0,
        ge=0,
        description="Ablation: right rollouts' rewards lose this times p_total before advantages are taken.",
    )
    objective: Literal["grpo", "cispo"] = Field(default="grpo", description="Token loss, a name in `engine.objective`.")
    clip_low: Share = Field(default=0.2, description="The ratio's lower bound is 1 - clip_low.")
    clip_high: PositiveFloat = Field(default=0.28, description="The ratio's upper bound is 1 + clip_high.")
    loss_denominator: Literal["tokens", "constant"] = Field(
        default="tokens",
        description="`tokens`: trained ones of the update; `constant`: kept rollouts x max_response_tokens (Dr. GRPO).",
    )
    kl_beta: float = Field(default=0.0, ge=0, description="Weight of the KL term; at 0 no reference model is loaded.")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(default="k3", description="Estimator of KL(policy || reference).")
    entropy_coef: float = Field(default=0.0, ge=0, description="Weight of the entropy bonus.")
    sampler_weight: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Truncated weight min(pi_old / pi_sampler, cap); `auto` is on where bf16 is used, off in fp32.",
    )
    sampler_weight_cap: PositiveFloat = Field(default=2.0, description="Largest truncated weight.")
    updates_per_step: PositiveInt = Field(default=1, description="Optimizer steps on one rollout batch.")
    learning_rate: PositiveFloat = Field(default=5e-4, description="AdamW's rate.")
    scale_by_informative: bool = Field(
        default=True, description="Multiply the rate by min(1, 2 x share of groups kept), for tiny batches."
    )
    max_logprob_gap: PositiveFloat = Field(
        default=1e-4,
        description="Largest fp32 difference of sampler and learner on a sampled token; over it, stop. Unused in bf16.",
    )

    @model_validator(mode="after")
    def _keeps_fewer(self) -> Self:
        if self.keep_per_problem > self.rollouts_per_problem:
            raise ValueError(
                f"keep_per_problem {self.keep_per_problem} > rollouts_per_problem {self.rollouts_per_problem}"
            )
        if self.downsampling.kind == "keep_all" and self.keep_per_problem != self.rollouts_per_problem:
            raise ValueError("downsampling keep_all wants keep_per_problem = rollouts_per_problem")
        return self


class EvalStage(RolloutStage):
    """Held-out problems, sampled and greedy. They never occur in training data of the same recipe."""

    kind: Literal["eval"]
    problems: Problems = ArithmeticProblems()
    count: PositiveInt = Field(default=128, description="Held-out problems.")
    samples: int = Field(default=1, ge=0, description="Sampled rollouts a problem; 0 for greedy only.")
    greedy: bool = Field(default=True, description="One greedy rollout a problem besides.")
    problem_seed: int = Field(default=99, description="Equal seeds give equal problems, so stages can be compared.")


AnyStage = Annotated[SftStage | RlStage | EvalStage, Field(discriminator="kind")]


class RolloutResources(Strict):
    """Processes that sample."""

    kind: Literal["vllm", "scripted"] = Field(default="vllm", description="`scripted` is for tests: no model.")
    engines: PositiveInt = Field(default=1, description="Rollout engine processes.")
    kv_cache_mb: PositiveInt = Field(default=256, description="KV cache of each engine, MiB.")
    max_running: PositiveInt = Field(default=256, description="Most rollouts in flight in one engine.")
    retries: int = Field(default=2, ge=0, description="Times a rollout that we spoiled is done again.")
    start_timeout_s: PositiveFloat = Field(default=300, description="Seconds an engine may take to start.")
    precision: Literal["fp32", "bf16"] = Field(default="fp32", description="Number format of the engines' weights.")
    weights: Literal["broadcast", "file"] = Field(
        default="broadcast",
        description="How new weights reach vLLM: a process group, or a file that every engine can read.",
    )


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


ToolName = Annotated[str, Field(pattern=r"^(python|python_session|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")]

_LEFT_OUT_OF_DIGEST = {"tools": ("python",), "scoring": ScoringResources()}
"""Fields younger than runs that people have, and the value with which a recipe means what it meant without them."""


class Recipe(Strict):
    """Model, ordered stages, resources: all that a run is determined by."""

    name: str = Field(min_length=1, max_length=80, description="What a run of it is called.")
    seed: int = Field(default=0, ge=0, description="Seeds data, sampling of problems and initial weights.")
    notes: tuple[str, ...] = Field(default=(), description="What a reader of the results must know.")
    model: Model
    tools: tuple[ToolName, ...] = Field(
        default=("python",),
        min_length=1,
        description="What the policy may call: `python` (each program alone), `python_session` (variables last for the "
        "rollout), or a tool of your own as `module:attribute`.",
    )
    stages: tuple[AnyStage, ...] = Field(min_length=1)
    rollout: RolloutResources = RolloutResources()
    sandbox: SandboxResources = SandboxResources()
    scoring: ScoringResources = ScoringResources()
    learner: LearnerResources = LearnerResources()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [stage.name for stage in self.stages]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"stage names must be unique, given twice: {', '.join(twice)}")
        if "python" not in self.tools and any(isinstance(stage, SftStage) for stage in self.stages):
            raise ValueError("tools must have python where there is an sft stage: its trajectories call it")
        for stage in self.stages:
            length = stage.max_tokens if isinstance(stage, SftStage) else stage.max_response_tokens
            if length > self.model.context_tokens:
                raise ValueError(
                    f"stage {stage.name}: {length} tokens do not fit context_tokens {self.model.context_tokens}"
                )
        return self

    def weighs_sampler(self, stage: RlStage) -> bool:
        """Whether tokens carry the truncated weight min(pi_old / pi_sampler, cap): where the two differ (bf16)."""
        if stage.sampler_weight == "auto":
            return "bf16" in (self.learner.precision, self.rollout.precision)
        return stage.sampler_weight == "on"

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        younger = {name for name, value in _LEFT_OUT_OF_DIGEST.items() if getattr(self, name) == value}
        canonical = json.dumps(self.model_dump(mode="json", exclude=younger), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class Provenance(Strict):
    """What else a run is determined by: compared when it is resumed (``engine.contract.provenance``)."""

    code: str = Field(description="SHA-256 over the engine's and the sandbox's source files.")
    lock: str = Field(description="SHA-256 over the names and versions of the installed packages.")
    data: dict[str, str] = Field(default_factory=dict, description="Problem file -> SHA-256 of its bytes.")


class JobSpec(Strict):
    """A recipe bound to a run: what is in the run folder's ``job.json``."""

    schema_version: Literal[1] = 1
    run_id: str
    created_at: float = Field(description="Unix time, seconds.")
    digest: str
    recipe: Recipe
    provenance: Provenance | None = Field(default=None, description="None in folders of older engines.")


KIND_MISSING = "field kind is missing: it says which of the possible forms this is"


def describe(error: ValidationError) -> list[str]:
    """One line a wrong field: its place in the file, what was expected, what was given."""
    lines = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"]) or "recipe"
        given = (
            "" if item["type"] in ("missing", "extra_forbidden", "value_error") else f" (given: {item['input']!r:.80})"
        )
        said = KIND_MISSING if item["type"] == "union_tag_not_found" else item["msg"]
        lines.append(f"{place}: {said}{given}")
    return lines


def load_recipe(path: Path) -> Recipe:
    """Read and check a TOML recipe. Raises ``RecipeError`` that names every wrong field, or the line of bad TOML."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(str(path), [f"cannot be read: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), [f"is not TOML: {error}"]) from error
    try:
        return Recipe.model_validate(data, context={"folder": path.parent})
    except ValidationError as error:
        raise RecipeError(str(path), describe(error)) from error
