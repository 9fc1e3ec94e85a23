"""The stages of a recipe: what each trains or measures, and by which settings.

Every field carries its unit and meaning once, here; forms, command-line help and documentation are made from it.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from engine.contract.base import Share, Strict
from engine.contract.problems import ArithmeticProblems, Problems


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


class WaitForAll(Strict):
    """A step ends when its last rollout has: nothing about which rollouts are learned from depends on their length."""

    kind: Literal["wait"] = "wait"


class CarryStragglers(Strict):
    """A step ends when most groups are whole: rollouts under way go on in the next step, by its weights.

    Their groups are learned from when they are whole; every rollout records which policy step sampled which tokens. One
    whose tools keep variables (a session) does not halt: the step waits for it.
    """

    kind: Literal["carry"]
    share: Share = Field(
        default=0.9, description="Share of a step's rollouts, in whole groups, after which others halt."
    )
    chunk_tokens: PositiveInt = Field(default=256, description="Tokens sampled at a time: where a rollout can halt.")


class CutStragglers(Strict):
    """A step ends when most rollouts have, the others are left out: biased to short ones, for comparison only."""

    kind: Literal["cut"]
    share: Share = Field(default=0.9, description="Share of a step's rollouts after which the others are left out.")


Stragglers = Annotated[WaitForAll | CarryStragglers | CutStragglers, Field(discriminator="kind")]


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
    stragglers: Stragglers = WaitForAll()
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
        description="Truncated weight min(pi_old / pi_sampler, cap); `auto`: on in bf16 and with carried rollouts.",
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
