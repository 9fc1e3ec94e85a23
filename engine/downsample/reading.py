"""Reading the plain values of a JSON document into our dataclasses, with errors that name the field.

Strict: a missing or unknown field and a value of another type are errors, so that a record is never recomputed from
something that its writer did not mean. Leaves out what the values mean, which the dataclasses check themselves.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

Read = TypeVar("Read")

MOST = 2**53
"""Largest whole number that every JSON reader keeps as it is."""


class RecordError(ValueError):
    """A record that cannot be read; the message names the field and says what was expected."""


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MOST


def _number(value: object) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


_TYPES: Final[Mapping[object, tuple[str, Callable[[object], bool]]]] = {
    int: ("a whole number", _whole),
    float: ("a number", _number),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("a text", lambda value: isinstance(value, str)),
    int | None: ("a whole number or null", lambda value: value is None or _whole(value)),
    float | None: ("a number or null", lambda value: value is None or _number(value)),
}


def read_flat(cls: Callable[..., Read], value: object, place: str) -> Read:
    """A dataclass whose fields are plain values. Raises ``RecordError``, also for what the class itself refuses."""
    types = _types_of(cls)
    given = read_object(value, place, types)
    checked = {name: read_value(types[name], given[name], f"{place}.{name}") for name in types}
    try:
        return cls(**checked)
    except ValueError as error:
        raise RecordError(f"{place}: {error}") from error


def read_object(value: object, place: str, names: Mapping[str, object]) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(value, dict):
        raise RecordError(f"{place}: expected an object, got {shown(value)}")
    for name in names:
        if name not in value:
            raise RecordError(f"{place}.{name}: is missing")
    for name in value:
        if name not in names:
            raise RecordError(f"{place}: unknown field {shown(name)}, expected {', '.join(names)}")
    return value


def read_list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise RecordError(f"{place}: expected a list, got {shown(value)}")
    return value


def read_value(wanted: object, value: object, place: str) -> Any:
    """A plain value of the type ``wanted``; whole numbers become floats where a float is wanted."""
    if get_origin(wanted) is not None and wanted not in _TYPES:  # Literal
        words = get_args(wanted)
        if value not in words:
            raise RecordError(f"{place}: expected one of {', '.join(words)}, got {shown(value)}")
        return value
    name, fits = _TYPES[wanted]
    if not fits(value):
        raise RecordError(f"{place}: expected {name}, got {shown(value)}")
    return float(value) if wanted in (float, float | None) and isinstance(value, int) else value


def shown(value: object) -> str:
    """A value of a stranger's file in one short line without characters that a terminal obeys."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:79] + "..."


@cache
def _types_of(cls: type) -> dict[str, object]:
    hints = get_type_hints(cls)
    return {each.name: hints[each.name] for each in fields(cls)}
