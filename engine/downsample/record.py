"""One group's selection as it is stored: enough to decide it again, on any machine and with other settings.

A stage writes one record a group, one JSON object a line. The rule, its settings, the counts and every candidate with
its stored uniform are the input; the selection is what came out. ``recompute`` gives that selection again, equal to
the bit on machines whose C library rounds ``exp`` and ``pow`` alike. Leaves out files (``engine.stages``) and people
(``in_words.py``).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Self, get_type_hints

from engine.downsample.base import Candidate, Decision, Selection, keep_count
from engine.downsample.reading import RecordError, read_flat, read_list, read_object, read_value, shown
from engine.downsample.registry import Option, check_options, make_downsampler

__all__ = ["GroupRecord", "RecordError", "deviations", "recompute", "what_if"]

SCHEMA_VERSION = 1

_FIELDS = ("schema_version", "group", "problem_id", "rule", "planned", "keep", "candidates", "selection")
_CLOSE = 1e-9  # relative; far above what C libraries differ by


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What was decided about a group, and from what.

    ``kind`` and ``options`` are the rule's. ``planned`` and ``keep`` are the recipe's rollouts sampled and kept in a
    group (the paper's 2G and G); with fewer candidates than planned, proportionally fewer places are given
    (``places``). ``candidates`` and the selection's decisions are in the order of their index.
    """

    group: str
    problem_id: str
    kind: str
    options: Mapping[str, Option]
    planned: int
    keep: int
    candidates: tuple[Candidate, ...]
    selection: Selection

    @classmethod
    def decide(
        cls,
        *,
        group: str,
        problem_id: str,
        kind: str,
        options: Mapping[str, Option],
        planned: int,
        keep: int,
        candidates: Sequence[Candidate],
    ) -> Self:
        """Apply the rule and record it. Raises ``ValueError`` that names a wrong setting or count."""
        rule = make_downsampler(kind, options)
        ordered = tuple(sorted(candidates, key=lambda each: each.index))
        selection = rule.select(ordered, keep_count(planned, keep, len(ordered)))
        complete = check_options(kind, options)  # a default that changes later must not change the past
        return cls(group, problem_id, kind, complete, planned, keep, ordered, selection)

    @property
    def places(self) -> int:
        """K': how many the rule was asked to keep."""
        return keep_count(self.planned, self.keep, len(self.candidates))

    @property
    def right(self) -> int:
        return sum(each.right for each in self.candidates)

    @property
    def wrong(self) -> int:
        return len(self.candidates) - self.right

    def as_dict(self) -> dict[str, object]:
        """Plain values, ready for ``json.dumps``; ``from_dict`` gives the record again."""
        return {
            "schema_version": SCHEMA_VERSION,
            "group": self.group,
            "problem_id": self.problem_id,
            "rule": {"kind": self.kind, **self.options},
            "planned": self.planned,
            "keep": self.keep,
            "candidates": [asdict(each) for each in self.candidates],
            "selection": self.selection.as_dict(),
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read what ``as_dict`` gave. Raises ``RecordError`` that names the wrong field."""
        given = read_object(value, "record", dict.fromkeys(_FIELDS))
        version = read_value(int, given["schema_version"], "schema_version")
        if version != SCHEMA_VERSION:
            raise RecordError(f"schema_version: is {version}, this program reads {SCHEMA_VERSION}")
        kind, options = _read_rule(given["rule"])
        record = cls(
            group=read_value(str, given["group"], "group"),
            problem_id=read_value(str, given["problem_id"], "problem_id"),
            kind=kind,
            options=options,
            planned=read_value(int, given["planned"], "planned"),
            keep=read_value(int, given["keep"], "keep"),
            candidates=_read_candidates(given["candidates"]),
            selection=_read_selection(given["selection"]),
        )
        _check_counts(record)
        return record


def recompute(record: GroupRecord) -> Selection:
    """The selection decided again from the record's input."""
    rule = make_downsampler(record.kind, record.options)
    return rule.select(record.candidates, record.places)


def what_if(record: GroupRecord, changes: Mapping[str, object]) -> GroupRecord:
    """The same rollouts and uniforms under other settings: ``kind``, ``keep`` or any option of the rule.

    A change of ``kind`` carries over the options that both rules have. Raises ``ValueError`` that names the setting.
    """
    changes = dict(changes)
    kind = changes.pop("kind", record.kind)
    keep = changes.pop("keep", record.keep)
    if not isinstance(kind, str):
        raise ValueError(f"kind: expected the name of a rule, got {shown(kind)}")
    if isinstance(keep, bool) or not isinstance(keep, int) or not 0 <= keep <= record.planned:
        raise ValueError(f"keep: expected a whole number from 0 to the planned {record.planned}, got {shown(keep)}")
    carried = {name: record.options[name] for name in check_options(kind, {}) if name in record.options}
    changed = replace(record, kind=kind, keep=keep, options=check_options(kind, carried | changes))
    return replace(changed, selection=recompute(changed))


def deviations(record: GroupRecord) -> list[str]:
    """Where the stored selection is not what its input gives, in words; none for an honest record.

    Numbers may differ by what C libraries differ by; the outcome, the quotas and who is kept may not.
    """
    again = recompute(record)
    found = [
        f"{name}: stored {shown(stored)}, recomputed {shown(computed)}"
        for name in ("outcome", "kept", "kept_right_quota", "kept_wrong_quota")
        if (stored := getattr(record.selection, name)) != (computed := getattr(again, name))
    ]
    stored_by_index = {each.index: each for each in record.selection.decisions}
    for decision in again.decisions:
        found += _differences(stored_by_index[decision.index], decision)
    return found


def _differences(stored: Decision, computed: Decision) -> Iterator[str]:
    for each in fields(Decision):
        left, right = getattr(stored, each.name), getattr(computed, each.name)
        floats = isinstance(left, float) and isinstance(right, float)
        if not (math.isclose(left, right, rel_tol=_CLOSE, abs_tol=_CLOSE) if floats else left == right):
            yield f"rollout {stored.index}, {each.name}: stored {shown(left)}, recomputed {shown(right)}"


def _read_rule(value: object) -> tuple[str, dict[str, Option]]:
    if not isinstance(value, dict):
        raise RecordError(f"rule: expected an object, got {shown(value)}")
    if "kind" not in value:
        raise RecordError("rule.kind: is missing")
    kind = read_value(str, value["kind"], "rule.kind")
    options = {name: option for name, option in value.items() if name != "kind"}
    try:
        complete = check_options(kind, options)
    except ValueError as error:
        raise RecordError(f"rule.{error}") from error
    for name in complete:
        if name not in options:
            raise RecordError(f"rule.{name}: is missing")
    return kind, complete


def _read_candidates(value: object) -> tuple[Candidate, ...]:
    rows = read_list(value, "candidates")
    if not rows:
        raise RecordError("candidates: expected one rollout or more, got none")
    candidates = tuple(read_flat(Candidate, row, f"candidates[{place}]") for place, row in enumerate(rows))
    _check_indices([each.index for each in candidates], "candidates")
    return candidates


def _read_selection(value: object) -> Selection:
    types = get_type_hints(Selection)
    given = read_object(value, "selection", types)
    decisions = tuple(
        read_flat(Decision, row, f"selection.decisions[{place}]")
        for place, row in enumerate(read_list(given["decisions"], "selection.decisions"))
    )
    kept = tuple(
        read_value(int, index, f"selection.kept[{place}]")
        for place, index in enumerate(read_list(given["kept"], "selection.kept"))
    )
    flat = {
        name: read_value(types[name], given[name], f"selection.{name}")
        for name in ("outcome", "kept_right_quota", "kept_wrong_quota")
    }
    return Selection(kept=kept, decisions=decisions, **flat)


def _check_indices(indices: Sequence[int], place: str) -> None:
    for before, (row, index) in zip(indices, enumerate(indices[1:], start=1), strict=False):
        if index <= before:
            raise RecordError(f"{place}[{row}].index: expected over {before}, the one before it, got {index}")


def _check_counts(record: GroupRecord) -> None:
    if record.planned < len(record.candidates):
        raise RecordError(f"planned: is {record.planned}, but there are {len(record.candidates)} candidates")
    if not 0 <= record.keep <= record.planned:
        raise RecordError(f"keep: expected 0 to the planned {record.planned}, got {record.keep}")
    ours = [each.index for each in record.candidates]
    if [each.index for each in record.selection.decisions] != ours:
        raise RecordError("selection.decisions: expected one a candidate, in the order of the candidates")
