"""One group's selection as a table that a person can follow by hand: ``python -m engine explain-roc``.

First the arithmetic of the quotas in words, then the rollouts of each class in the order in which places were given,
with a line where the quota ends. A what-if shows both outcomes beside each other. The file may be a stranger's: its
texts reach the terminal as plain characters only. Leaves out the rules and their words: ``engine.downsample``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.box import HORIZONTALS
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.downsample.base import Candidate, Decision
from engine.downsample.in_words import PENALTIES, explained
from engine.downsample.reading import shown
from engine.downsample.record import GroupRecord, RecordError, deviations
from engine.view.wording import NOTHING, percent

MIN_WIDTH = 104
"""Columns of the widest table: on a narrower terminal lines break, and no number is cut."""

_CALLS_AND_TAGS = "err/calls: erroneous tool calls of all; tags: <answer> opened/closed, in sampled text."
_REASONS = {"kept": "kept", "not_drawn": "not drawn"}
_DEVIATIONS_SHOWN = 5


def read_group(path: Path, group: str | None = None) -> GroupRecord:
    """The record in a JSON file, or the one of ``group`` in a ``.jsonl`` file with a record a line.

    Raises ``RecordError`` that names the file, the line and the field.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: is not UTF-8 text: byte {error.start}") from error
    place, value = _pick(path, text, group)
    try:
        return GroupRecord.from_dict(value)
    except RecordError as error:
        raise RecordError(f"{place}: {error}") from error


def _pick(path: Path, text: str, group: str | None) -> tuple[str, object]:
    """The value asked for and where it stands."""
    values = dict(_values(path, text))
    wanted = {place: value for place, value in values.items() if group is None or _name(value) == group}
    if len(wanted) == 1:
        return next(iter(wanted.items()))
    some = ", ".join(sorted({shown(_name(value)) for value in values.values()})[:5])
    if not wanted and values:
        raise RecordError(f"{path}: has no group {shown(group)}; its first groups are {some}")
    if not wanted:
        raise RecordError(f"{path}: is empty, expected a group's record")
    if group is None:
        raise RecordError(f"{path}: has {len(wanted)} groups, pick one with --group; the first are {some}")
    raise RecordError(f"{path}: group {shown(group)} is there more than once: {', '.join(wanted)}")


def _values(path: Path, text: str) -> Iterator[tuple[str, object]]:
    if path.suffix != ".jsonl":
        yield str(path), _parse(text, str(path))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", _parse(line, f"{path}:{number}")


def _parse(text: str, place: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{place}: is not JSON: {error}") from error


def _name(value: object) -> object:
    return value.get("group") if isinstance(value, dict) else None


def parse_settings(given: Sequence[str]) -> dict[str, object]:
    """``["eps=0.1", "mode=sorted"]`` as values. Raises ``ValueError`` for one that is no ``name=value``."""
    settings: dict[str, object] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (equals and name and value):
            raise ValueError(f"--set {shown(each)}: expected name=value, such as eps=0.1")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value  # a word needs no quotes
    return settings


def print_explanation(record: GroupRecord, other: GroupRecord | None, console: Console | None = None) -> None:
    """Print the record's tables, or, with ``other``, the same group under other settings beside it."""
    console = console or Console()
    console.width = max(console.width, MIN_WIDTH)
    console.print(Group(*(explanation(record) if other is None else comparison(record, other))))


def as_json(record: GroupRecord, other: GroupRecord | None) -> dict[str, object]:
    """The same for programs."""
    plain: dict[str, object] = {
        "record": record.as_dict(),
        "explained": explained(record),
        "deviations": deviations(record),
    }
    if other is not None:
        before, after = set(record.selection.kept), set(other.selection.kept)
        plain["what_if"] = {
            "record": other.as_dict(),
            "explained": explained(other),
            "enter": sorted(after - before),
            "leave": sorted(before - after),
        }
    return plain


def explanation(record: GroupRecord) -> list[RenderableType]:
    """The steps in words, then a table a class."""
    parts: list[RenderableType] = [_heading(record), _steps("", record)]
    parts += [Text(line, style="dim") for line in (*PENALTIES, _CALLS_AND_TAGS)]
    candidates = {each.index: each for each in record.candidates}
    for right in (True, False):
        decisions = in_order_of_places(record, right)
        if decisions:
            parts += [Text(), _class_table(decisions, candidates)]
    parts.append(Text(f"Kept: {_indices(record.selection.kept)}", style="bold"))
    return parts


def deviation_lines(record: GroupRecord) -> list[str]:
    """What to say of a record whose selection does not follow from its input; nothing for an honest one."""
    found = deviations(record)
    if not found:
        return []
    more = [f"  and {len(found) - _DEVIATIONS_SHOWN} more"] if len(found) > _DEVIATIONS_SHOWN else []
    heading = "the stored selection is not what its candidates and its rule give:"
    return [heading, *(f"  {each}" for each in found[:_DEVIATIONS_SHOWN]), *more]


def in_order_of_places(record: GroupRecord, right: bool) -> list[Decision]:
    """A class's decisions by rank; by index where nothing was ordered."""
    members = [each for each in record.selection.decisions if each.right is right]
    return sorted(members, key=lambda each: (each.rank or 0, each.index))


def _heading(record: GroupRecord) -> Text:
    return Text(f"group {plain_text(record.group)} · problem {plain_text(record.problem_id)}", style="bold")


def _steps(title: str, record: GroupRecord) -> Text:
    lines = ([title] if title else []) + [f"{n}. {line}" for n, line in enumerate(explained(record), start=1)]
    return Text("\n".join(lines))


def _class_table(decisions: Sequence[Decision], candidates: Mapping[int, Candidate]) -> Table:
    first = decisions[0]
    name = "Right" if first.right else "Wrong"
    title = f"{name} ones: {min(first.quota, len(decisions))} places for {len(decisions)}"
    table = Table(title=Text(title, style="bold"), title_justify="left", box=HORIZONTALS, padding=0)
    for heading in ("#", "reward", "err/calls", "tags", "turns", "p_err", "p_format", "p_total", "w", "u", "key"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("chance", justify="right", no_wrap=True)
    table.add_column("decision", no_wrap=True)
    for each in decisions:
        table.add_row(*_cells(each, candidates[each.index]), style="" if each.kept else "dim")
        if each.rank is not None and each.rank == each.quota:
            table.add_section()
    return table


def _cells(decision: Decision, candidate: Candidate) -> Iterator[Text]:
    yield Text(str(decision.index))
    yield Text(f"{candidate.reward:g}")
    yield Text(f"{candidate.errors}/{candidate.calls}")
    yield Text(f"{candidate.answer_opens}/{candidate.answer_closes}")
    yield Text(str(candidate.turns))
    for penalty in (decision.p_err, decision.p_format, decision.p_total):
        yield Text(f"{penalty:.3f}")
    yield Text(NOTHING if decision.weight is None else f"{decision.weight:.4g}")
    yield Text(f"{decision.u:.5f}")
    yield Text(NOTHING if decision.key is None else f"{decision.key:.5f}")
    yield Text(_chance(decision))
    yield Text(_reason(decision))


def comparison(record: GroupRecord, other: GroupRecord) -> list[RenderableType]:
    """Both outcomes of the same rollouts and the same uniforms."""
    before, after = set(record.selection.kept), set(other.selection.kept)
    return [
        _heading(record),
        _steps("As recorded", record),
        Text(),
        _steps("What if", other),
        Text(),
        _comparison_table(record, other),
        Text(f"Enter: {_indices(sorted(after - before))}", style="bold green"),
        Text(f"Leave: {_indices(sorted(before - after))}", style="bold red"),
    ]


def _comparison_table(record: GroupRecord, other: GroupRecord) -> Table:
    table = Table(box=HORIZONTALS, padding=0)
    for heading in ("#", "class", "p_total", "recorded:", "rank", "chance", "what if:", "rank", "chance", ""):
        numbers = heading in ("#", "p_total", "rank", "chance")
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=True)
    again = {each.index: each for each in other.selection.decisions}
    for right in (True, False):
        for each in in_order_of_places(record, right):
            table.add_row(*_compared(each, again[each.index]))
        table.add_section()
    return table


def _compared(before: Decision, after: Decision) -> Iterator[Text]:
    yield Text(str(before.index))
    yield Text("right" if before.right else "wrong")
    yield Text(f"{before.p_total:.3f}")
    for each in (before, after):
        yield Text(_reason(each), style="" if each.kept else "dim")
        yield Text(NOTHING if each.rank is None else str(each.rank))
        yield Text(_chance(each))
    if before.kept == after.kept:
        yield Text("")
    else:
        yield Text("enters", style="green") if after.kept else Text("leaves", style="red")


def _chance(decision: Decision) -> str:
    return NOTHING if decision.inclusion is None else percent(decision.inclusion)


def _reason(decision: Decision) -> str:
    return plain_text(_REASONS.get(decision.reason, decision.reason))


def _indices(indices: Sequence[int]) -> str:
    return ", ".join(map(str, indices)) or "none"


def plain_text(text: str) -> str:
    """A stranger's text in one line: what a terminal would obey, or nobody would see, becomes its escape."""
    cut = text if len(text) <= 120 else text[:119] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
