"""Which trajectories of a run somebody wants to see: read from the query string and written back to it.

The same filter is behind the list and behind next/previous on a trajectory's page. What cannot be read is named, never
ignored in silence. Leaves out paging (``paging.py``) and the columns that are loaded (``trajectories.queries``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode

from django.db.models import Exists, OuterRef, Q, QuerySet

from webapp.trajectories.models import ToolCall, Trajectory
from webapp.ui.queries import cleaned

REWARDS = (("1", "right (1)"), ("0", "wrong (0)"), ("none", "not scored"))
ERRORS = (("any", "with tool errors"), ("none", "without tool errors"), ("no-calls", "without a tool call"))
KEPT = (("yes", "kept"), ("no", "dropped"))
NAMES = (
    "stage",
    "step",
    "reward",
    "reward_min",
    "reward_max",
    "errors",
    "error_type",
    "kept",
    "stop",
    "group",
    "superseded",
)
_MOST_STEPS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Filter:
    """The wishes as given, and what is wrong with them by name."""

    wishes: Mapping[str, str]
    wrong: Mapping[str, str] = field(default_factory=dict)
    condition: Q = field(default_factory=Q)

    @property
    def active(self) -> bool:
        return any(self.wishes.values())

    @property
    def query(self) -> str:
        """The filter as a query string, without paging."""
        return urlencode({name: value for name, value in self.wishes.items() if value})

    def __getitem__(self, name: str) -> str:
        return self.wishes[name]

    def apply(self, rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
        """Rows that fit; with something wrong in the filter, none, so that nobody takes them for its result."""
        if self.wrong:
            return rows.none()
        rows = rows.filter(self.condition)
        return rows if self.wishes["superseded"] else rows.filter(superseded=False)


def read(query: Mapping[str, str]) -> Filter:
    """The filter in a query string."""
    wishes = {name: cleaned(query.get(name, "")) for name in NAMES}
    wrong: dict[str, str] = {}
    condition = Q()
    for name, wish in wishes.items():
        if not wish:
            continue
        try:
            condition &= _condition(name, wish)
        except ValueError as error:
            wrong[name] = str(error)
    return Filter(wishes, wrong, condition)


def _condition(name: str, wish: str) -> Q:
    """Raises ``ValueError`` in words for people."""
    match name:
        case "stage":
            return Q(stage=wish)
        case "group":
            return Q(group_name=wish)
        case "step":
            return Q(step=_whole_number(wish))
        case "reward":
            return _choice(wish, {"1": Q(reward__gt=0), "0": Q(reward__lte=0), "none": Q(reward__isnull=True)})
        case "reward_min":
            return Q(reward__gte=_number(wish))
        case "reward_max":
            return Q(reward__lte=_number(wish))
        case "errors":
            none = Q(tool_errors=0)
            return _choice(wish, {"any": Q(tool_errors__gt=0), "none": none, "no-calls": Q(tool_calls=0)})
        case "error_type":
            calls = ToolCall.objects.filter(run=OuterRef("run"), trajectory=OuterRef("pk"))
            return Q(Exists(calls.filter(Q(error_type=wish) | Q(status=wish))))
        case "kept":
            return _choice(wish, {"yes": Q(kept=True), "no": Q(kept=False)})
        case "stop":
            return Q(stop_reason=wish)
        case _:
            return Q()  # superseded: see ``apply``


def _choice(wish: str, choices: Mapping[str, Q]) -> Q:
    if wish not in choices:
        raise ValueError(f"expected {', '.join(choices)}")
    return choices[wish]


def _whole_number(wish: str) -> int:
    if not wish.isascii() or not wish.isdecimal() or int(wish) > _MOST_STEPS:
        raise ValueError("expected a whole number")
    return int(wish)


def _number(wish: str) -> float:
    try:
        value = float(wish)
    except ValueError as error:
        raise ValueError("expected a number") from error
    if not math.isfinite(value):
        raise ValueError("expected a number")
    return value
