"""The recipe's JSON schema, as the form, the pointers of errors and nobody else walk it.

The schema comes from ``engine.contract``, which says what every field means and may be, once. Leaves out judging
data: pydantic does.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final

from engine.contract.job import Recipe

Schema = Mapping[str, Any]

MISSING: Final = object()
"""Where None is a value."""


@functools.cache
def root() -> Schema:
    return Recipe.model_json_schema()


def resolved(schema: Schema) -> Schema:
    """The schema with its reference followed, and of "this or null" the this, marked ``nullable``."""
    if "$ref" in schema:
        target: Schema = root()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return resolved({**target, **beside})
    others = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
    if len(others) == 1:
        beside = {key: value for key, value in schema.items() if key != "anyOf"}
        return {**resolved(others[0]), **beside, "nullable": True}
    return schema


def is_union(schema: Schema) -> bool:
    """One of several objects, told apart by their ``kind``."""
    return "discriminator" in schema


def members(schema: Schema) -> dict[str, Schema]:
    """Kind -> the object of that kind, in the order in which they are told."""
    found = [resolved(each) for each in schema["oneOf"]]
    return {each["properties"]["kind"]["const"]: each for each in found}


def is_object(schema: Schema) -> bool:
    """Something with fields of its own, that may be one of several."""
    return is_union(schema) or "properties" in schema


def is_list_of_objects(schema: Schema) -> bool:
    return "items" in schema and is_object(resolved(schema["items"]))


def child(schema: Schema, part: str | int) -> Schema | None:
    """The schema of a field, an item or a value of a map; None when there can be none."""
    if part in schema.get("properties", {}):
        return resolved(schema["properties"][part])
    if "prefixItems" in schema and isinstance(part, int) and part < len(schema["prefixItems"]):
        return resolved(schema["prefixItems"][part])
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            return resolved(schema[key])
    return None
