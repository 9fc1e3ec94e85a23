"""Rejection of groups whose rewards are all equal.

Their advantages are zero, so they would only dilute the batch. Every rule rejects them first, before it
samples, and counts all-right and all-wrong groups apart. The paper implies that rejected groups are not
refilled, and so do we. Leaves out the offline filter of solved problems (``stages``).
"""

from collections.abc import Sequence
from dataclasses import replace

from engine.downsample.base import Candidate, Decision, Outcome, Selection
from engine.downsample.penalty import error_penalty, format_penalty


def all_equal(candidates: Sequence[Candidate]) -> bool:
    """True without any contrast; none or one rollout has none."""
    return len({each.reward for each in candidates}) <= 1


def reject_equal_reward(candidates: Sequence[Candidate]) -> Selection | None:
    """The rejection of a group without contrast, or None for a group to go on with."""
    if not all_equal(candidates):
        return None
    outcome: Outcome = "all_right" if candidates[0].right else "all_wrong"
    decisions = tuple(decide(each, kept=False, reason=outcome) for each in candidates)
    return Selection((), decisions, outcome, kept_right_quota=0, kept_wrong_quota=0)


def throw_out(selection: Selection, outcome: Outcome) -> Selection:
    """The same selection with nobody kept; how the draw went stays on record."""
    decisions = tuple(replace(each, kept=False, reason=outcome) for each in selection.decisions)
    return replace(selection, kept=(), decisions=decisions, outcome=outcome)


def decide(
    candidate: Candidate,
    *,
    kept: bool,
    reason: str,
    quota: int = 0,
    weight: float | None = None,
    key: float | None = None,
    rank: int | None = None,
    inclusion: float | None = None,
) -> Decision:
    """A decision with the penalties filled in: they are shown for every rollout, whatever the rule."""
    p_err = error_penalty(candidate.calls, candidate.errors)
    p_format = format_penalty(candidate.answer_opens, candidate.answer_closes, candidate.turns)
    return Decision(
        index=candidate.index,
        right=candidate.right,
        p_err=p_err,
        p_format=p_format,
        p_total=p_err + p_format,
        u=candidate.u,
        weight=weight,
        key=key,
        rank=rank,
        inclusion=inclusion,
        quota=quota,
        kept=kept,
        reason=reason,
    )
