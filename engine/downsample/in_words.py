"""A selection told in sentences with its own numbers, so that a person can do it again with pencil and paper.

Plain text for any surface: terminal, page, log. Leaves out the rows of single rollouts (``engine.view.explain``).
"""

from engine.downsample.balanced import Balanced
from engine.downsample.keep_all import KeepAll
from engine.downsample.quotas import QuotaSteps
from engine.downsample.record import GroupRecord
from engine.downsample.registry import make_downsampler
from engine.downsample.roc import Roc
from engine.downsample.uniform import Uniform

PENALTIES = (
    "p_err = erroneous tool calls / tool calls, 0.5 without a call.",
    "p_format = (answer tags - 1) / turns, at most 1; 1 without an answer or with unbalanced tags.",
    "p_total = p_err + p_format.",
)


def explained(record: GroupRecord) -> list[str]:
    """The whole decision about a group, a step a sentence."""
    if record.selection.outcome in ("all_right", "all_wrong"):
        return [_present(record), _rejected(record)]
    lines = [_present(record), _places(record), *_quotas(record), *_orders(record)]
    if record.selection.outcome == "roc_emptied":
        lines.append(
            "Variance is checked again: those that would stay have equal rewards, so every advantage would be 0. "
            "The whole group is dropped (roc_emptied)."
        )
    return lines


def _present(record: GroupRecord) -> str:
    settings = ", ".join(f"{name} = {value}" for name, value in record.options.items())
    return (
        f"{len(record.candidates)} rollouts: {record.right} right (reward over 0), {record.wrong} wrong. "
        f"Rule: {record.kind}{f' with {settings}' if settings else ''}."
    )


def _rejected(record: GroupRecord) -> str:
    return (
        f"All rewards are {record.candidates[0].reward:g}, so every advantage would be 0. "
        f"The group is rejected before anything is drawn ({record.selection.outcome})."
    )


def _places(record: GroupRecord) -> str:
    present = len(record.candidates)
    if present == record.planned:
        return f"Places: {record.places} of {record.planned}."
    return (
        f"Places: {present} of {record.planned} planned rollouts came through, so "
        f"floor({present} x {record.keep} / {record.planned}) = {record.places} stay."
    )


def _quotas(record: GroupRecord) -> list[str]:
    match make_downsampler(record.kind, record.options):
        case Roc() | Uniform() as rule:
            return _split(rule.quota_steps(record.right, record.wrong, record.places))
        case Balanced():
            half, each = record.places // 2, record.selection.kept_right_quota
            return [
                "Quota of each class: the smaller class, but no more than half of the places: "
                f"min({record.right}, {record.wrong}, floor({record.places} / 2) = {half}) = {each}."
            ]
        case KeepAll():
            return ["Every rollout stays."]
        case _:
            selection = record.selection
            return [f"Quotas: {selection.kept_right_quota} right, {selection.kept_wrong_quota} wrong."]


def _split(steps: QuotaSteps) -> list[str]:
    return [_wrong_quota(steps), _right_quota(steps)]


def _wrong_quota(steps: QuotaSteps) -> str:
    present = steps.right + steps.wrong
    exact = steps.wrong * steps.keep / present
    how = "floor" if steps.share <= exact else "round"
    return (
        f"Quota of wrong ones: {how}({steps.wrong} x {steps.keep} / {present} = {exact:g}) = {steps.share}"
        + _limited(steps.share, steps.wanted, steps.min_per_class, steps.wrong)
        + "."
    )


def _right_quota(steps: QuotaSteps) -> str:
    quotas = steps.quotas
    said = f"Quota of right ones: {steps.keep} - {steps.wanted} = {steps.left}" + _limited(
        steps.left, quotas.right, steps.min_per_class, steps.right
    )
    if quotas.wrong != steps.wanted:
        said += f"; that leaves {steps.keep} - {quotas.right} = {quotas.wrong} for wrong ones"
    return said + "."


def _limited(value: int, result: int, low: int, high: int) -> str:
    """What the limits did; nothing where they did nothing."""
    if result == value:
        return ""
    if result > value:
        return f", raised to {result} (min_per_class {low}, of {high} there are)"
    return f", cut to {result} (of {high} there are)"


def _orders(record: GroupRecord) -> list[str]:
    match make_downsampler(record.kind, record.options):
        case Roc(mode="sorted"):
            return ["Right ones: lowest p_total first, equal ones in batch order.", "Wrong ones: in batch order."]
        case Roc(eps=eps):
            return [
                f"Right ones: w = 1 / ({eps:g} + p_total), key = u^(1/w); the largest keys stay.",
                "Wrong ones: w = 1, so key = u; the largest keys stay.",
            ]
        case Uniform() | Balanced():
            return ["Both classes: w = 1, so key = u; the largest keys stay."]
        case _:
            return []
