"""What a tool looks like to the policy, and what is wrong with the arguments of a call.

``parameters`` is a JSON schema (draft 2020-12) of an object whose properties are the arguments. A schema that could
not be checked later is refused when the tool is described. Leaves out reading calls: ``engine.rollout.toolcalls``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError  # type: ignore[import-untyped]

_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_QUOTED_CHARS = 60
_MESSAGE_CHARS = 200


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool as the prompt shows it. Raises ``ValueError`` for a description that no call could be checked by."""

    name: str
    description: str
    parameters: dict[str, Any]
    _validators: Mapping[str | None, Draft202012Validator] = field(init=False, repr=False, compare=False)
    """Of each argument, and by None of all together. Made once: every call is checked on the event loop."""

    def __post_init__(self) -> None:
        if problem := _spec_problem(self.name, self.parameters):
            raise ValueError(f"tool {self.name}: {problem}")
        schemas = [*self.properties.items(), (None, self.parameters)]
        validators = {name: Draft202012Validator(schema) for name, schema in schemas}
        object.__setattr__(self, "_validators", validators)

    @property
    def properties(self) -> Mapping[str, Any]:
        properties: Mapping[str, Any] = self.parameters.get("properties", {})
        return properties

    @property
    def required(self) -> Sequence[str]:
        required: Sequence[str] = self.parameters.get("required", ())
        return required

    def as_json(self) -> dict[str, Any]:
        """Name, description and parameters, as chat templates show a tool."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def problem(self, arguments: Mapping[str, object]) -> str | None:
        """What is wrong with the arguments of a call, the first thing only; None if it may run."""
        for name in self.required:
            if name not in arguments:
                return f"argument {name} is missing"
        for name, value in arguments.items():
            if name not in self.properties:
                return f"unknown argument {quoted(name)}"
            if problem := _value_problem(value, self._validators[name]):
                return f"argument {name} {problem}"
        if problem := _value_problem(arguments, self._validators[None]):  # what the schema says of them together
            return f"the object of arguments {problem}"
        return None

    def signature(self) -> str:
        """The arguments in words, for whoever called wrongly."""
        types = {name: schema.get("type", "any value") for name, schema in self.properties.items()}
        alike = set(types.values()) == {"string"}
        names = [
            f"{name}{'' if alike else f': {types[name]}'}{'' if name in self.required else ' (optional)'}"
            for name in types
        ]
        return f"Expected arguments of {self.name}{', all strings' if alike else ''}: {', '.join(names) or 'none'}."


def kind(value: object) -> str:
    """JSON's word for a value."""
    if value is None:
        return "missing or null"
    kinds = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return kinds.get(type(value), "a number")


def quoted(name: str) -> str:
    return repr(name if len(name) <= _QUOTED_CHARS else name[:_QUOTED_CHARS] + "...")


def _spec_problem(name: str, parameters: Mapping[str, Any]) -> str | None:
    if not _NAME.fullmatch(name):
        return "its name must be a letter or _, then letters, digits, _ or -, at most 64 in all"
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        return f"parameters{error.json_path.removeprefix('$')} is no JSON schema: {error.message[:_MESSAGE_CHARS]}"
    if parameters.get("type", "object") != "object":
        return f"parameters must have type object, has {parameters['type']!r}"
    properties = parameters.get("properties", {})
    for argument, schema in properties.items():
        if not isinstance(schema, Mapping):
            return f"parameter {argument} must be described by an object, is {schema!r}"
    if undescribed := [argument for argument in parameters.get("required", ()) if argument not in properties]:
        return f"required parameter {undescribed[0]} is not among properties"
    if "$ref" in _keys(parameters):
        return "parameters must be written out: $ref is not followed"
    return None


def _keys(value: object) -> Iterator[str]:
    """Keys of a JSON value and of everything in it."""
    if isinstance(value, Mapping):
        yield from value
    for inner in _inner(value):
        yield from _keys(inner)


def _inner(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _value_problem(value: object, validator: Draft202012Validator) -> str | None:
    try:
        if any(map(_SURROGATE.search, _texts(value))):  # no UTF-8 exists for it: nothing can take it
            return "holds a lone surrogate escape, which is no character"
        error = next(iter(validator.iter_errors(value)), None)
    except RecursionError:
        return "is nested too deeply"
    return None if error is None else _in_words(error, value)


def _in_words(error: ValidationError, value: object) -> str:
    place = error.json_path.removeprefix("$")
    if error.validator == "type" and not place:
        return f"is {kind(value)}, expected {_expected(error.validator_value)}"
    return f"{f'at {place}' if place else 'is wrong'}: {error.message[:_MESSAGE_CHARS]}"


def _expected(types: str | list[str]) -> str:
    several = [types] if isinstance(types, str) else types
    return " or ".join(f"an {each}" if each[0] in "aio" else f"a {each}" for each in several)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from value
    for inner in _inner(value):
        yield from _texts(inner)
