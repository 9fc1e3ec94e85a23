"""Recipes as TOML: writing one for people, and reading what the comment at the top of one says.

Reading TOML is ``tomllib``'s. What is written holds what was chosen: fields that differ from their defaults, required
ones, and the kinds that say which form something has. Leaves out keeping a person's own comments and order.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine.contract.job import Recipe

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_of(recipe: Recipe) -> str:
    """The recipe as TOML; reading it gives the recipe again."""
    chosen = chosen_of(recipe)
    tables = {name: value for name, value in chosen.items() if isinstance(value, dict)}
    plain = {name: value for name, value in chosen.items() if name not in tables and name != "stages"}
    blocks = [
        _lines(plain),
        _table("[model]", tables.pop("model")),
        *(_table("[[stages]]", stage) for stage in chosen["stages"]),
        *(_table(f"[{name}]", table) for name, table in tables.items()),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def chosen_of(model: BaseModel) -> dict[str, Any]:
    """What makes the model differ from its class's defaults, as plain data; name and kind come first."""
    fields = type(model).model_fields
    return {
        name: _plain(getattr(model, name))
        for name in sorted(fields, key=lambda name: name not in ("name", "kind"))
        if _is_chosen(fields[name], getattr(model, name))
    }


def _is_chosen(field: FieldInfo, value: object) -> bool:
    says_which_form = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
    default = field.get_default(call_default_factory=True, validated_data={})
    return says_which_form or field.is_required() or bool(value != default)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return chosen_of(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value


def _table(head: str, table: Mapping[str, Any]) -> list[str]:
    return [head, *_lines(table)]


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value, long=True)}" for key, value in table.items()]


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: object, *, long: bool = False) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int() | float():
            return repr(value)
        case list():
            return _array([_value(each) for each in value], long=long and any(isinstance(each, str) for each in value))
        case dict():
            inside = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items())
            return f"{{ {inside} }}" if inside else "{}"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _array(items: list[str], *, long: bool) -> str:
    if long and items:
        return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
    return f"[{', '.join(items)}]"


def _string(text: str) -> str:
    """JSON's escapes are TOML's, but that TOML escapes DEL, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def description_of(toml: str) -> str:
    """The comment block at the top. A line that is indented continues the one before; an empty one parts paragraphs."""
    said: list[str] = []
    for line in toml.splitlines():
        if not line.startswith("#"):
            break
        text = line[1:].removeprefix(" ")
        if said and said[-1] and text[:1].isspace():
            said[-1] += " " + text.strip()
        else:
            said.append(text.strip())
    return "\n".join(said).strip()
