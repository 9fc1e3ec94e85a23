"""How things are said to people: numbers, times, stop reasons, why a rollout was kept or dropped.

Sentences are written once, here; templates only place them. Leaves out labels of recipe fields: the contract of the
engine describes them.
"""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

NOTHING = "–"  # noqa: RUF001 - the dash of tables, not a minus

STOP_REASONS = {
    "answered": "gave an answer",
    "no_answer": "ended without an answer",
    "length": "cut: it reached the longest response",
    "max_turns": "cut: it used up its turns",
    "aborted": "given up by us, not by the model",
}
CUT = frozenset({"length", "max_turns"})

CALL_STATUSES = {
    "ok": "ran",
    "error": "the program failed",
    "timeout": "ran out of time",
    "memory": "ran out of memory",
    "output_limit": "printed too much",
    "killed": "killed by the sandbox",
    "parse_error": "not a readable call",
}

TIERS = {
    "full": "A program has namespaces, a file system and a user of its own, no network, and hard limits.",
    "container": "A program cannot open files outside its folder, sockets or processes, and has limits of its own; it "
    "shares the machine's view of processes.",
    "none": "Programs are NOT isolated: they can do all that this node's user can.",
}

# Metric -> label and format, in the order of tables. What is not listed is shown by its key.
METRICS: dict[str, tuple[str, str]] = {
    "reward": ("Reward", "number"),
    "pass@1": ("pass@1", "percent"),
    "tool_error_rate": ("Tool-error rate", "percent"),
    "tool_error_rate_right": ("Tool-error rate of right rollouts", "percent"),
    "response_tokens": ("Response length, tokens", "number"),
    "tool_calls": ("Tool calls a rollout", "number"),
    "truncated_share": ("Truncated share", "percent"),
    "answered_share": ("Answered share", "percent"),
    "all_right": ("Groups all right", "number"),
    "all_wrong": ("Groups all wrong", "number"),
    "roc_emptied": ("Groups emptied by selection", "number"),
    "kept_groups": ("Groups kept", "number"),
    "kept_rollouts": ("Rollouts kept", "number"),
    "left_out": ("Rollouts left out by our failures", "number"),
    "carried": ("Rollouts carried into the next step", "number"),
    "gone_on": ("Rollouts begun by an earlier step", "number"),
    "cut": ("Stragglers cut", "number"),
    "policy_lag": ("Policy steps within a rollout", "number"),
    "tokens_per_s": ("Tokens a second", "number"),
    "loss": ("Loss", "number"),
    "entropy": ("Entropy, nats a token", "number"),
    "entropy_after_tool": ("Entropy after tool responses", "number"),
    "clip_frac": ("Clipped share", "percent"),
    "effective_tokens": ("Tokens with a gradient", "number"),
    "kl_sampler": ("KL to the sampler", "number"),
    "kl_reference": ("KL to the reference", "number"),
    "weight_capped_frac": ("Sampler weights at their cap", "percent"),
    "refilled_groups": ("Groups asked besides", "number"),
    "skipped": ("Updates skipped", "number"),
    "grad_norm": ("Gradient norm", "number"),
    "lr": ("Learning rate", "number"),
}


def number(value: float | None) -> str:
    """Three significant digits, thousands apart; a dash for nothing."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share as per cent with one digit."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{100 * value:.1f}%"


def said(key: str, value: float | None) -> str:
    """A metric's value in its own format."""
    return percent(value) if METRICS.get(key, ("", "number"))[1] == "percent" else number(value)


def duration(seconds: float | None) -> str:
    """``30 ms``, ``42 s``, ``3 min 05 s``, ``2 h 14 min``, ``5 d 3 h``."""
    if seconds is None:
        return NOTHING
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def age(at: datetime | None, now: datetime) -> str:
    """``12 s ago``, ``3 min ago``, ``5 h ago``, ``2 d ago``."""
    if at is None:
        return NOTHING
    seconds = max(0, round((now - at).total_seconds()))
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


SELECTION = {
    "kept": "kept",
    "not_drawn": "not drawn",
    "all_right": "group all right",
    "all_wrong": "group all wrong",
    "roc_emptied": "group emptied",
}


def selection_rule(stage: Mapping[str, Any] | None, *, kept: bool, reason: str, right: bool) -> str:
    """Why a rollout was kept or dropped, in a sentence. ``reason`` is down-sampling's code, ``stage`` the stage of the
    recipe that it belongs to."""
    if stage is None or stage.get("kind") != "rl":
        return "An evaluation: every rollout counts, nothing is selected."
    if reason in _WHOLE_GROUP:
        return _WHOLE_GROUP[reason]
    rule = stage.get("downsampling") or {}
    if reason == "kept":
        return _why_kept(rule, right)
    if reason == "not_drawn":
        return _why_not_drawn(rule, right)
    return reason or ("Kept; no reason was recorded." if kept else "Not kept; no reason was recorded.")


def sampled_by(steps: Sequence[Sequence[int]], response_tokens: int) -> list[str]:
    """Which weights sampled which part of a response, a line each: ``version 3: tokens 0 to 511``."""
    return [
        f"version {version}: tokens {number(first)} to {number(end - 1)}"
        for (first, version), (end, _) in pairwise([*steps, (response_tokens, 0)])
    ]


_WHOLE_GROUP = {
    "all_right": "The whole group was dropped: every rollout of it is right, so none is better than another.",
    "all_wrong": "The whole group was dropped: every rollout of it is wrong, so none is better than another.",
    "roc_emptied": "The whole group was dropped: those that selection kept have equal rewards and teach nothing.",
}


_PENALTY_FREE = ("uniform", "balanced")
"""Kinds of down-sampling that draw right rollouts without looking at their penalties."""


def _why_kept(rule: Mapping[str, Any], right: bool) -> str:
    if rule.get("kind") == "keep_all":
        return "Kept: this stage learns from every rollout of a group with unequal rewards."
    if not right or rule.get("kind") in _PENALTY_FREE:
        return f"Kept: drawn among the {_class(right)} rollouts of its group, all with the same chance."
    if rule.get("mode") == "sorted":
        return "Kept: among the right rollouts of its group with the lowest penalties."
    return "Kept: drawn among the right rollouts of its group; the lower the penalty, the better the chance."


def _why_not_drawn(rule: Mapping[str, Any], right: bool) -> str:
    if not right and rule.get("mode") == "sorted":
        return "Dropped: the places for wrong rollouts of its group went to earlier ones."
    if not right or rule.get("kind") in _PENALTY_FREE:
        return f"Dropped: not drawn; its group had more {_class(right)} rollouts than places for them."
    if rule.get("mode") == "sorted":
        return "Dropped: right rollouts of its group with lower penalties took the places."
    return "Dropped: not drawn; rollouts with more tool errors or a worse format have a smaller chance to stay."


def _class(right: bool) -> str:
    return "right" if right else "wrong"
