"""How many right and how many wrong rollouts of a group stay.

The paper halves each class and does not say what happens to odd counts or to nearly solved groups. Ours: the
wrong ones are rounded down, each class keeps at least ``min_per_class`` of what it has, and exactly ``keep``
stay whenever there are that many. Leaves out which ones: ``roc.py``, ``uniform.py``, ``balanced.py``.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Quotas(NamedTuple):
    right: int
    wrong: int


@dataclass(frozen=True, slots=True)
class QuotaSteps:
    """The arithmetic of one group, number by number, so that it can be shown as it was done.

    ``share`` is the wrong ones' part before any limit, ``wanted`` after them; ``left`` is what remains for the right
    ones. The right class has the last word: where its limits differ from ``left``, the wrong ones give or take.
    """

    right: int
    wrong: int
    keep: int
    min_per_class: int
    share: int
    wanted: int
    left: int
    quotas: Quotas


def quota_steps(right: int, wrong: int, keep: int, min_per_class: int, *, share: int | None = None) -> QuotaSteps:
    """Split ``keep`` places; the wrong ones' ``share`` is floor(wrong * keep / present) unless it is given.

    Where ``keep`` is too small for both minimums, the right class is served first.
    """
    if keep < 0 or min_per_class < 0:
        raise ValueError(f"keep and min_per_class must be 0 or more, are {keep} and {min_per_class}")
    present = right + wrong
    keep = min(keep, present)
    if share is None:
        share = wrong * keep // present if present else 0
    wanted = _clamp(share, min_per_class, min(wrong, keep))
    left = keep - wanted
    kept_right = _clamp(left, min_per_class, min(right, keep))
    return QuotaSteps(right, wrong, keep, min_per_class, share, wanted, left, Quotas(kept_right, keep - kept_right))


def class_quotas(right: int, wrong: int, keep: int, min_per_class: int) -> Quotas:
    """The paper's halves, wrong ones rounded down."""
    return quota_steps(right, wrong, keep, min_per_class).quotas


def release_steps(right: int, wrong: int, keep: int, min_per_class: int) -> QuotaSteps:
    """The release's split: each class rounded by itself, halves to the even number.

    Only where the two add up to ``keep``, as they always do for 16 of 32; where a rollout would be lost or invented
    (5 right of 10, keep 5: 2 + 2), the wrong ones are rounded down instead.
    """
    present = right + wrong
    places = min(keep, present)
    rounded = [round(count * places / present) if present else 0 for count in (right, wrong)]
    return quota_steps(right, wrong, keep, min_per_class, share=rounded[1] if sum(rounded) == places else None)


def balanced_quotas(right: int, wrong: int, keep: int) -> Quotas:
    """As many of each class as the smaller one has, and no more than half of ``keep``."""
    if keep < 0:
        raise ValueError(f"keep must be 0 or more, is {keep}")
    each = min(right, wrong, keep // 2)
    return Quotas(each, each)


def _clamp(value: int, low: int, high: int) -> int:
    """``high`` wins: what does not exist cannot be kept."""
    return min(max(value, low), high)
