"""What an objective is given and what it returns. Leaves out the objectives: one file each, see ``registry.py``."""

from dataclasses import dataclass, field
from typing import Protocol, Self

from torch import Tensor

from engine.contract.stages import RlStage
from engine.objective.ratio import require_same_shape


@dataclass(frozen=True, slots=True)
class Tokens:
    """The trained tokens of one forward pass, [T] each. What is not trained (prompt, tool text) is not in here.

    ``logp_T`` is the policy's log-probability and carries the gradient. ``old_T`` is the learner's own before the
    step's first update; None with one update a step: the policy itself without gradient. ``sampler_T`` is the
    rollout engine's, ``reference_T`` the reference model's. ``entropy_T`` is in nats and carries a gradient only
    where the learner was told so (``entropy_coef`` over 0). ``after_tool_T`` is True for the first sampled tokens
    behind a tool response. Raises ``ValueError`` where shapes differ.
    """

    logp_T: Tensor
    advantage_T: Tensor
    old_T: Tensor | None = None
    sampler_T: Tensor | None = None
    reference_T: Tensor | None = None
    entropy_T: Tensor | None = None
    after_tool_T: Tensor | None = None

    def __post_init__(self) -> None:
        require_same_shape(**{name: getattr(self, name) for name in self.__slots__})

    @property
    def before_T(self) -> Tensor:
        """Log-probability under the policy before the step's first update, without gradient."""
        return (self.logp_T if self.old_T is None else self.old_T).detach()


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Sums over a pass's tokens, so that passes and ranks add up to the update's.

    ``sum`` carries the gradient and is not yet divided (``normalisation.token_mean``). ``sums`` and ``maxima`` are
    detached scalars that ``metrics.metrics_of`` makes metrics of; a NaN stays a NaN in both. They stay tensors so
    that a pass does not wait for the device. All passes of an update have the same names, those without tokens too.
    """

    sum: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    """A loss over tokens: small enough to be read beside its formula, with no state and no model."""

    @classmethod
    def of(cls, stage: RlStage, *, sampler_weight: bool) -> Self:
        """As a recipe's stage asks for. ``sampler_weight`` is decided by number formats (``Recipe.weighs_sampler``)."""
        ...

    def __call__(self, tokens: Tokens) -> LossTerms: ...
