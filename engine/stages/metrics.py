"""Figures of a set of trajectories: pure functions, one name and one meaning each.

Shares are over rollouts unless said otherwise; lengths in tokens. An empty set gives NaN, which travels as null with
a flag, never as a number that looks measured.
"""

import math
from collections.abc import Iterable, Sequence

from engine.contract.trajectory import StopReason, Trajectory


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else math.nan


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    return float(sorted(values)[max(0, math.ceil(share * len(values)) - 1)]) if values else math.nan


def is_right(trajectory: Trajectory) -> bool:
    return (trajectory.reward or 0.0) > 0


def tool_error_rate(trajectories: Sequence[Trajectory]) -> float:
    """Erroneous tool calls / tool calls."""
    calls = sum(len(t.calls) for t in trajectories)
    return sum(t.tool_errors for t in trajectories) / calls if calls else math.nan


def pass_at_1(trajectories: Sequence[Trajectory]) -> tuple[float, float]:
    """Mean over problems of the share of right rollouts, and its standard error (problems are the sample)."""
    by_problem: dict[str, list[float]] = {}
    for trajectory in trajectories:
        by_problem.setdefault(trajectory.problem_id, []).append(float(is_right(trajectory)))
    shares = [mean(rights) for rights in by_problem.values()]
    centre = mean(shares)
    variance = mean((share - centre) ** 2 for share in shares)
    return centre, math.sqrt(variance / len(shares)) if shares else math.nan


def rollout_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """What a rollout batch looks like before selection."""
    right = [t for t in trajectories if is_right(t)]
    return {
        "reward": mean(t.reward or 0.0 for t in trajectories),
        "tool_error_rate": tool_error_rate(trajectories),
        "tool_error_rate_right": tool_error_rate(right),
        "tool_calls": mean(len(t.calls) for t in trajectories),
        "response_tokens": mean(len(t.ids) for t in trajectories),
        "response_tokens_p95": percentile([len(t.ids) for t in trajectories], 0.95),
        "truncated_share": mean(t.stop_reason in (StopReason.length, StopReason.max_turns) for t in trajectories),
        "answered_share": mean(t.stop_reason is StopReason.answered for t in trajectories),
    }


def generated_tokens(trajectories: Sequence[Trajectory]) -> int:
    """Tokens that the policy sampled."""
    return sum(sum(t.sampled) for t in trajectories)


def eval_metrics(sampled: Sequence[Trajectory], greedy: Sequence[Trajectory]) -> dict[str, float]:
    """Figures of an evaluation; a part that was not run has no entries."""
    metrics: dict[str, float] = {}
    for suffix, part in (("", sampled), ("_greedy", greedy)):
        if part:
            figures = rollout_metrics(part)
            metrics[f"pass@1{suffix}"], metrics[f"pass@1_stderr{suffix}"] = pass_at_1(part)
            for name in ("tool_error_rate", "response_tokens", "truncated_share", "tool_calls"):
                metrics[f"{name}{suffix}"] = figures[name]
    return metrics
