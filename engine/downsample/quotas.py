"""How many right and how many wrong rollouts of a group stay.

The paper halves each class and does not say what happens to odd counts or to nearly solved groups. Ours: the
wrong ones are rounded down, each class keeps at least ``min_per_class`` of what it has, and exactly ``keep``
stay whenever there are that many. Leaves out which ones: ``roc.py``, ``uniform.py``.
"""

from typing import NamedTuple


class Quotas(NamedTuple):
    right: int
    wrong: int


def class_quotas(right: int, wrong: int, keep: int, min_per_class: int) -> Quotas:
    """Split ``keep`` places between ``right`` and ``wrong`` rollouts.

    Where ``keep`` is too small for both minimums, the right class is served first.
    """
    if keep < 0 or min_per_class < 0:
        raise ValueError(f"keep and min_per_class must be 0 or more, are {keep} and {min_per_class}")
    present = right + wrong
    keep = min(keep, present)
    wanted_wrong = _clamp(wrong * keep // present if present else 0, min_per_class, min(wrong, keep))
    kept_right = _clamp(keep - wanted_wrong, min_per_class, min(right, keep))
    return Quotas(kept_right, keep - kept_right)


def _clamp(value: int, low: int, high: int) -> int:
    """``high`` wins: what does not exist cannot be kept."""
    return min(max(value, low), high)
