"""JSON pointers into a recipe (RFC 6901), and pydantic's errors under the pointers of the fields they are about.

Pydantic puts the chosen kind of a union into an error's place, and puts errors of a rule about several fields at the
object that holds them: here both are undone. ``/`` stands for the recipe as a whole. Leaves out raising
(``runs.services.check_recipe``).
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from engine.contract.job import KIND_MISSING
from webapp.recipes import schema
from webapp.recipes.schema import Schema

WHOLE = "/"
LARGEST = 2**53 - 1
"""Integers above are not exact in a browser."""

Parts = tuple[str | int, ...]

_OF_A_STAGE = re.compile(r"stage (\S+): \d+ tokens do not fit")
_GIVEN_TWICE = re.compile(r"given twice: ([^,]+)")


def pointer_of(parts: Iterable[str | int]) -> str:
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    return "".join(f"/{part}" for part in escaped) or WHOLE


def parts_of(pointer: str) -> tuple[str, ...]:
    if pointer == WHOLE:
        return ()
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def errors_by_pointer(error: ValidationError, data: object) -> dict[str, str]:
    """Pointer -> what was expected there, for everything that is wrong with ``data``."""
    found: dict[str, list[str]] = {}
    for item in error.errors(include_url=False):
        if _is_echo(item):
            continue
        parts, place = _located(item["loc"])
        said = _said(item, place)
        if item["type"] == "value_error":
            parts = _place_of_rule(parts, place, said, data)
        elif item["type"].startswith("union_tag"):
            parts = (*parts, "kind")
        found.setdefault(pointer_of(parts), []).append(said)
    return {pointer: "; ".join(said) for pointer, said in found.items()}


def _is_echo(item: ErrorDetails) -> bool:
    """A list whose items are all wrong counts as too short for pydantic."""
    return item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]


def _located(location: Sequence[str | int]) -> tuple[Parts, Schema]:
    """Where that is in the data, and what has to be there: without the kinds of unions."""
    parts: Parts = ()
    place: Schema | None = schema.root()
    for part in location:
        kinds = schema.members(place) if place is not None and schema.is_union(place) else {}
        if part in kinds:
            place = kinds[str(part)]
        elif part != "[key]":
            parts, place = (*parts, part), schema.child(place, part) if place is not None else None
    return parts, place or {}


def _said(item: ErrorDetails, place: Schema) -> str:
    context = item.get("ctx", {})
    match item["type"]:
        case "missing":
            return "is required"
        case "extra_forbidden":
            return _no_such_field(item)
        case "union_tag_not_found":
            return KIND_MISSING
        case "union_tag_invalid":
            return f"expected one of {context['expected_tags']} (given: {context['tag']!r:.80})"
        case "value_error":
            return str(context["error"])
        case "string_pattern_mismatch" if "description" in place:
            return f"{item['msg']}. {place['description']} (given: {item['input']!r:.80})"
    return f"{item['msg']} (given: {item['input']!r:.80})"


def _no_such_field(item: ErrorDetails) -> str:
    *above, name = item["loc"]
    _, place = _located(above)
    near = difflib.get_close_matches(str(name), place.get("properties", ()), n=1, cutoff=0.75)
    return f"no such field; did you mean {near[0]}?" if near else "no such field"


def _place_of_rule(parts: Parts, place: Schema, said: str, data: object) -> Parts:
    """The field that a rule about several is shown at: the first that its message names."""
    if not parts:
        return _place_of_recipe_rule(said, data)
    properties = place.get("properties", {})
    named = [word for word in (*re.findall(r"\w+", said), "path") if word in properties]
    return (*parts, named[0]) if named else parts


def _place_of_recipe_rule(said: str, data: object) -> Parts:
    stages = data.get("stages") if isinstance(data, Mapping) else None
    of_a_stage, twice = _OF_A_STAGE.search(said), _GIVEN_TWICE.search(said)
    name = of_a_stage[1] if of_a_stage else twice[1] if twice else None
    if not isinstance(stages, Sequence) or name is None:
        return ()
    places = [place for place, stage in enumerate(stages) if stage.get("name") == name]
    if not of_a_stage:
        return ("stages", places[-1], "name")
    return ("stages", places[0], "max_tokens" if stages[places[0]]["kind"] == "sft" else "max_response_tokens")


def unstorable(value: object, parts: Parts = ()) -> Iterator[tuple[str, str]]:
    """(pointer, what was expected) of what a recipe may hold and JSON, Postgres or a browser may not."""
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from unstorable(each, (*parts, key))
    elif isinstance(value, tuple):
        for place, each in enumerate(value):
            yield from unstorable(each, (*parts, place))
    elif isinstance(value, str | Path) and "\0" in str(value):
        yield pointer_of(parts), "expected text without NUL characters"
    elif isinstance(value, float) and not math.isfinite(value):
        yield pointer_of(parts), f"expected a finite number (given: {value})"
    elif isinstance(value, int) and abs(value) > LARGEST:
        yield pointer_of(parts), f"expected at most {LARGEST} (given: {value!r:.80})"


def too_many_steps(stages: Sequence[Any], most: int = 2**31 - 1) -> dict[str, str]:
    """Stages whose steps, counted from the beginning of the run, cannot be stored as numbers of steps."""
    wrong, x = {}, 0
    for place, stage in enumerate(stages):
        name = "count" if stage.kind == "eval" else "steps"
        x += 0 if name == "count" else stage.steps
        if max(x, getattr(stage, name)) > most:
            wrong[pointer_of(("stages", place, name))] = f"expected at most {most} steps of all stages together"
    return wrong
