"""What a tool may look like, and what is said of arguments that do not fit it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rollout.toolcalls import CallError, ToolCall, parse_tool_calls
from engine.rollout.tools.spec import ToolSpec

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "units": {"enum": ["C", "F"]},
        "at": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
    },
    "required": ["city", "days"],
}
WEATHER = ToolSpec("weather", "The weather.", PARAMETERS)


def parse(**arguments: Any) -> ToolCall | CallError:
    text = f"<tool_call>{json.dumps({'name': 'weather', 'arguments': arguments})}</tool_call>"
    (found,) = parse_tool_calls(text, [WEATHER])
    return found


def test_arguments_come_as_the_json_values_that_they_are() -> None:
    arguments = {"city": "Rome", "days": 3, "units": "C", "at": [41.9, 12.5]}
    assert parse(**arguments) == ToolCall("weather", arguments)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"days": "3"}, "argument days is a string, expected an integer."),
        ({"days": None}, "argument days is missing or null, expected an integer."),
        ({"days": True}, "argument days is a boolean, expected an integer."),
        ({"days": 0}, "argument days is wrong: 0 is less than the minimum of 1."),
        ({"units": "K"}, "argument units is wrong: 'K' is not one of ['C', 'F']."),
        ({"at": [1, "x"]}, "argument at at [1]: 'x' is not of type 'number'."),
        ({"at": ["\ud800"]}, "argument at holds a lone surrogate"),
        ({"why": 1}, "unknown argument 'why'."),
    ],
)
def test_the_first_wrong_argument_is_named(wrong: dict[str, Any], said: str) -> None:
    found = parse(**{"city": "Rome", "days": 1, **wrong})
    assert isinstance(found, CallError)
    assert f"Tool call error: {said}" in found.text
    assert (
        "Expected arguments of weather: city: string, days: integer, units: any value (optional), at: array (optional)."
        in found.text
    )


def test_what_the_schema_says_of_all_arguments_together_holds_too() -> None:
    spec = ToolSpec("t", "", {"properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}})
    assert spec.problem({"a": 1, "b": 2}) is None
    assert spec.problem({"a": 1}) == "the object of arguments is wrong: 'b' is a dependency of 'a'"


def test_a_long_value_gives_a_short_error() -> None:
    assert len(WEATHER.problem({"city": "", "days": 1, "units": "x" * 100_000}) or "") < 300


def test_arguments_nested_without_end_are_an_error_like_others() -> None:
    spec = ToolSpec("t", "", {"properties": {"a": {}}})
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert spec.problem({"a": deep}) == "argument a is nested too deeply"


@given(st.dictionaries(st.sampled_from(["city", "days", "units", "at", "x"]), st.none() | st.integers() | st.text()))
def test_no_arguments_make_the_check_fail(arguments: dict[str, Any]) -> None:
    assert isinstance(WEATHER.problem(arguments), str | None)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("two words", {}, "tool two words: its name must be"),
        ("t", {"properties": {"n": {"type": "int"}}}, r"parameters\.properties\.n\.type is no JSON schema: 'int'"),
        ("t", {"type": "array"}, "parameters must have type object, has 'array'"),
        ("t", {"properties": {"n": True}}, "parameter n must be described by an object, is True"),
        ("t", {"required": ["n"]}, "required parameter n is not among properties"),
        ("t", {"properties": {"n": {"$ref": "http://x/y"}}}, "must be written out"),
    ],
)
def test_a_tool_that_no_call_could_be_checked_by_is_refused(name: str, parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ToolSpec(name, "", parameters)
