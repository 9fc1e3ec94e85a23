"""p_err, p_format and p_total: how badly a rollout reached its answer (paper, 2.2).

What the paper leaves open and we decided: tool errors come from each call's structured status, never from
finding a word in its text; unbalanced answer tags count as no answer. Leaves out what the penalties are used
for: ``roc.py``.
"""

from engine.downsample.base import Candidate

NO_CALL_PENALTY = 0.5
MISSING_ANSWER_PENALTY = 1.0


def error_penalty(calls: int, errors: int) -> float:
    """p_err: share of erroneous tool calls; 0.5 without a call, so that avoiding the tool is no way out."""
    return errors / calls if calls else NO_CALL_PENALTY


def format_penalty(answer_opens: int, answer_closes: int, turns: int) -> float:
    """p_format: 1 without a well-formed answer, else min(1, (answer tags - 1) / turns)."""
    if answer_opens == 0 or answer_opens != answer_closes:
        return MISSING_ANSWER_PENALTY
    return min(1.0, (answer_opens - 1) / max(turns, 1))


def total_penalty(candidate: Candidate) -> float:
    """p_total = p_err + p_format, between 0 and 2."""
    return error_penalty(candidate.calls, candidate.errors) + format_penalty(
        candidate.answer_opens, candidate.answer_closes, candidate.turns
    )
