"""A field's value as the text of an input and back: whole numbers, numbers, choices, pairs, lists.

Text that is no such value is told with what was expected. Bounds are not checked here: pydantic does, when the whole
recipe is there.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from webapp.recipes import schema
from webapp.recipes.schema import MISSING, Schema

Kind = Literal["int", "float", "text", "bool", "choice", "map", "list", "union"]

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PARTING = re.compile(r"[,;\s]+")


class NotConverted(ValueError):
    """Text that is no value of the field's kind; the message says what was expected."""


def kind_of(place: Schema) -> Kind:
    """Which kind of input the field wants."""
    if "enum" in place:
        return "choice"
    if place.get("type") == "array":
        return "list"
    if place.get("type") == "object" and isinstance(place.get("additionalProperties"), Mapping):
        return "map"
    kinds: dict[str, Kind] = {"boolean": "bool", "integer": "int", "number": "float", "string": "text"}
    return kinds[place["type"]]


def text_of(place: Schema, value: object) -> str:
    """The value as the input shows it; ``value_of`` gives it back. What is no value of the kind is shown as it is."""
    if value is MISSING or value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    kind = kind_of(place)
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return str(int(value))
    if kind == "map" and isinstance(value, Mapping):
        return ", ".join(
            f"{key}={each!r}" if isinstance(each, float) else f"{key}={each}" for key, each in value.items()
        )
    if kind == "list" and isinstance(value, list | tuple):
        return _list_text(place, list(value))
    return repr(value) if isinstance(value, float) else str(value)


def value_of(place: Schema, text: str) -> Any:
    """The value that the text means. Raises ``NotConverted``."""
    if place.get("nullable") and not text.strip():
        return None
    return _CONVERSIONS[kind_of(place)](place, text)


def same(one: object, other: object) -> bool:
    """Whether two values mean the same in a recipe: 1 and 1.0 do, 1 and true do not, a list and a tuple do."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        left, right = ({str(key): each for key, each in pairs.items()} for pairs in (one, other))
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _whole_number(place: Schema, text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text.strip()):
        raise NotConverted(f"expected a whole number, {_given(text)}")
    return int(text)


def _number(place: Schema, text: str) -> float:
    if not _NUMBER.fullmatch(text.strip()):
        raise NotConverted(f"expected a number such as 0.004 or 4e-3, {_given(text)}")
    if not math.isfinite(number := float(text)):
        raise NotConverted(f"expected a finite number, {_given(text)}")
    return number


def _bool(place: Schema, text: str) -> bool:
    if text not in ("true", "on", "false"):
        raise NotConverted(f"expected true or false, {_given(text)}")
    return text != "false"


def _choice(place: Schema, text: str) -> str | int:
    """Of texts, or of numbers (a ZeRO stage)."""
    by_text: dict[str, str | int] = {str(each): each for each in place["enum"]}
    if text not in by_text:
        raise NotConverted(f"expected one of {', '.join(by_text)}, {_given(text)}")
    return by_text[text]


def _text(place: Schema, text: str) -> str:
    return text


def _map(place: Schema, text: str) -> dict[str, Any]:
    """``1=0.45, 2=0.4``; keys are judged with the recipe."""
    found: dict[str, Any] = {}
    inner = schema.resolved(place["additionalProperties"])
    for pair in _parts(text):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise NotConverted(f"expected pairs such as 1=0.45, 2=0.4, {_given(pair)}")
        if key in found:
            raise NotConverted(f"expected every key once, given twice: {key}")
        found[key] = value_of(inner, value)
    return found


def _list(place: Schema, text: str) -> list[Any]:
    if _holds_text(place):
        return _texts(text)
    inner = _item(place)
    return [value_of(inner, each) for each in _parts(text)]


def _texts(text: str) -> list[str]:
    """One text a line; a JSON list where texts themselves have lines."""
    if text.startswith("["):
        try:
            found = json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            found = None
        if isinstance(found, list) and all(isinstance(each, str) for each in found):
            return found
    return [line.strip() for line in re.split(r"\r\n|\r|\n", text) if line.strip()]


def _list_text(place: Schema, items: list[Any]) -> str:
    if not _holds_text(place):
        return ", ".join(repr(each) if isinstance(each, float) else str(each) for each in items)
    lines = "\n".join(map(str, items))
    return lines if _texts(lines) == items else json.dumps(items, ensure_ascii=False, default=str)


def _item(place: Schema) -> Schema:
    return schema.resolved(place["prefixItems"][0] if "prefixItems" in place else place["items"])


def _holds_text(place: Schema) -> bool:
    return kind_of(_item(place)) == "text"


def _parts(text: str) -> list[str]:
    """Parted by commas, semicolons or blanks; blanks around an equals sign part nothing."""
    return [part for part in _PARTING.split(re.sub(r"\s*=\s*", "=", text)) if part]


def _given(text: str) -> str:
    return f"given {text!r:.60}" if text.strip() else "given nothing"


_CONVERSIONS: dict[Kind, Callable[[Schema, str], Any]] = {
    "int": _whole_number,
    "float": _number,
    "bool": _bool,
    "choice": _choice,
    "text": _text,
    "map": _map,
    "list": _list,
}
