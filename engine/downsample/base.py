"""The contract of down-sampling: which of the 2G rollouts of one group are learned from, and why.

Standard library only, so that the web platform recomputes a selection with other settings without torch. A
rollout brings its own stored uniform ``u``: nothing here draws random numbers, equal inputs give equal
selections, and a what-if answer differs from the run's only by the setting that was changed. Leaves out where
candidates come from (``engine.stages``) and what happens to the kept ones (``engine.objective``).
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

Outcome = Literal["kept", "all_right", "all_wrong", "roc_emptied"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One scored rollout of a group, reduced to what a selection may look at.

    ``calls`` and ``errors`` count tool calls by structured status; answer tags are counted in sampled tokens
    only. A rollout that our own infrastructure spoiled is left out by the caller and never becomes a
    candidate.
    """

    index: int
    reward: float
    calls: int
    errors: int
    answer_opens: int
    answer_closes: int
    turns: int
    u: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward):
            raise ValueError(f"rollout {self.index}: reward is {self.reward}; leave unscored rollouts out")
        if not 0 <= self.errors <= self.calls:
            raise ValueError(f"rollout {self.index}: {self.errors} errors in {self.calls} tool calls")
        if min(self.answer_opens, self.answer_closes, self.turns) < 0:
            raise ValueError(f"rollout {self.index}: a count is negative")
        if not 0.0 < self.u <= 1.0:
            raise ValueError(f"rollout {self.index}: u is {self.u}, expected 0 < u <= 1")

    @property
    def right(self) -> bool:
        """In O_pos. The paper's reward is 0 or 1; for any other reward, more than nothing counts as right."""
        return self.reward > 0


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one candidate.

    ``u`` is its stored uniform; ``weight`` and ``key`` are those of its draw and None where the rule drew nothing.
    ``rank`` is its place in the order of its class, from 1: the first ``quota`` of the class are kept, where ``quota``
    is that of its own class. ``inclusion`` is the probability of such a place, over the luck of u. A group that was
    rejected before anything was ordered has neither rank nor probability. ``reason`` is ``kept``, ``not_drawn`` or the
    outcome that threw out the whole group.
    """

    index: int
    right: bool
    p_err: float
    p_format: float
    p_total: float
    u: float
    weight: float | None
    key: float | None
    rank: int | None
    inclusion: float | None
    quota: int
    kept: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What was decided about a group.

    ``kept`` holds indices in rising order and is empty unless the outcome is ``kept``. The quotas are what
    the rule allotted to each class; a group rejected before selection has 0 and 0.
    """

    kept: tuple[int, ...]
    decisions: tuple[Decision, ...]
    outcome: Outcome
    kept_right_quota: int
    kept_wrong_quota: int

    def as_dict(self) -> dict[str, object]:
        """Plain values, ready for ``json.dumps``."""
        return {
            **asdict(self),
            "kept": list(self.kept),
            "decisions": [asdict(each) for each in self.decisions],
        }


class Downsampler(Protocol):
    """A rule that keeps some rollouts of a group."""

    def select(self, candidates: Sequence[Candidate], keep: int) -> Selection:
        """Keep ``keep`` of the candidates of one group, or none with the outcome that says why."""
        ...


def keep_count(planned: int, keep: int, present: int) -> int:
    """K' = floor(N' * K / N): how many to keep when only ``present`` of ``planned`` rollouts came through."""
    if not (0 <= keep <= planned and 0 <= present <= planned):
        raise ValueError(
            f"expected 0 <= keep, present <= planned; got keep={keep}, present={present}, planned={planned}"
        )
    return present * keep // planned if planned else 0


def in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates by index: a selection must not depend on the order in which rollouts happened to finish."""
    ordered = sorted(candidates, key=lambda each: each.index)
    if not ordered:
        raise ValueError("a group without rollouts cannot be down-sampled; leave it out and count it")
    if len({each.index for each in ordered}) != len(ordered):
        raise ValueError(f"two rollouts of a group share an index: {[each.index for each in ordered]}")
    return ordered
