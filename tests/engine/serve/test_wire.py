"""Requests: what is taken, what is refused and by which field, what is taken without effect."""

import json
from typing import Any

import pytest

from engine.data.protocol import END
from engine.data.render import Message
from engine.serve.errors import ApiError
from engine.serve.wire import HARMLESS, NEUTRAL, conversation, read_request, system_text

USER = {"role": "user", "content": "2 + 2"}


def read(**fields: Any) -> Any:
    return read_request(json.dumps({"messages": [USER], **fields}).encode())


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_request(body)
    return caught.value


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{**USER, **fields}]}


WRONG = [
    ({}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "invalid_value"),
    ({"messages": "hello"}, "messages", "invalid_value"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    (message(role="god"), "messages[0].role", "invalid_value"),
    (message(content=5), "messages[0].content", "invalid_value"),
    (message(content=[{"type": "image_url", "image_url": {}}]), "messages[0].content", "invalid_value"),
    (message(tool_calls=[]), "messages[0].tool_calls", "unknown_parameter"),
    ({"best_of": 2}, "best_of", "unknown_parameter"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 17}, "n", "invalid_value"),
    ({"n": True}, "n", "invalid_value"),
    ({"n": "2"}, "n", "invalid_value"),
    ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": 1.5}, "max_completion_tokens", "invalid_value"),
    ({"stop": ""}, "stop[0]", "invalid_value"),
    ({"stop": ["a", 1]}, "stop[1]", "invalid_value"),
    ({"stream": 1}, "stream", "invalid_value"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", "unknown_parameter"),
    ({"top_p": 0.9}, "top_p", "unsupported_value"),
    ({"logprobs": True}, "logprobs", "unsupported_value"),
    ({"tools": [{"type": "function"}]}, "tools", "unsupported_value"),
    ({"tool_choice": "required"}, "tool_choice", "unsupported_value"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), WRONG, ids=[param for _, param, _ in WRONG])
def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, code: str) -> None:
    body = fields if not fields or "messages" in fields else {"messages": [USER], **fields}
    error = refusal(json.dumps(body).encode())
    assert (error.status, error.param, error.code, error.kind) == (400, param, code, "invalid_request_error")
    assert error.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[]", b'"x"', b"[" * 100_000, b'{"temperature": NaN}', b'{"user": "\\ud800"}']
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert (refusal(body).status, refusal(body).code) == (400, "invalid_json")


ORDERS = [
    ("s", "messages[0].role"),
    ("a", "messages[0].role"),
    ("sa", "messages[1].role"),
    ("ua", "messages[1].role"),
    ("ut", "messages[1].role"),
    ("us", "messages[1].role"),
    ("uast", "messages[2].role"),
    ("u", None),
    ("su", None),
    ("ssu", None),
    ("uau", None),
    ("uatt", None),
    ("uatau", None),
    ("uu", None),
]
ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


@pytest.mark.parametrize(("roles", "param"), ORDERS)
def test_the_order_of_roles(roles: str, param: str | None) -> None:
    body = json.dumps({"messages": [{"role": ROLES[role], "content": "x"} for role in roles]}).encode()
    if param is None:
        assert len(read_request(body).messages) == len(roles)
    else:
        assert refusal(body).param == param


def test_null_is_as_good_as_absent() -> None:
    fields = ["model", "n", "temperature", "max_tokens", "stop", "stream", "stream_options", "top_p", "tools", "user"]
    assert read(**dict.fromkeys(fields)) == read()
    returned = {"role": "assistant", "content": "4", "refusal": None, "audio": None}
    assert read_request(json.dumps({"messages": [USER, returned, USER]}).encode()).messages[1].content == "4"


def test_harmless_fields_and_neutral_values_change_nothing() -> None:
    assert read(**{name: 7 for name in HARMLESS}, **{name: neutral for name, (neutral, _) in NEUTRAL.items()}) == read()


def test_what_lm_eval_sends_is_taken() -> None:
    """Its `local-chat-completions` sends these fields with every request."""
    asked = read(model="toy", max_tokens=256, temperature=0, stop=["Question:", END], seed=1234)
    assert (asked.model, asked.max_tokens, asked.temperature, asked.stop) == ("toy", 256, 0, ["Question:", END])


def test_the_smaller_of_two_limits_counts() -> None:
    assert read().most_tokens is None
    assert read(max_tokens=9).most_tokens == 9
    assert read(max_tokens=9, max_completion_tokens=5).most_tokens == 5


def test_stop_is_one_string_or_several() -> None:
    assert read(stop="END").stop == ["END"]
    assert read(stop=["a", "b"]).stop == ["a", "b"]


def test_text_parts_are_joined_and_answers_of_tools_in_a_row_are_one_message() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "1", "tool_call_id": "x"},
        {"role": "tool", "content": "2"},
    ]
    messages = read_request(json.dumps({"messages": given}).encode()).messages
    assert system_text(messages) == "be brief\n\nbe kind"
    assert conversation(messages) == [
        Message("user", ("a\nb",)),
        Message("assistant", ("",)),
        Message("tool", ("1", "2")),
    ]
