"""A chat request as OpenAI's clients send it, checked in full: what is not supported is an error that names the field.

Decisions that clients depend on:

* **Null** is as good as absent, as in OpenAI's own API.
* **Harmless** fields change no answer and are taken without effect. ``seed`` is one of them: it is a wish in OpenAI's
  API too, engines on CPU cannot honour it, and lm-eval sends one with every request.
* **Neutral** values of what we do not support (``top_p`` 1, ``tools`` []) are taken: clients send their defaults.
* **Tools** are the server's own. An assistant's calls are part of its text, between ``<tool_call>`` tags.
* **Order:** system messages stand at the head, a ``tool`` message follows an assistant's or another tool's, the last
  message is the user's or a tool's.

Leaves out token ids and everything that is done with a request: ``chat.py``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, ValidationError, model_validator
from pydantic_core import from_json

from engine.data.render import Message
from engine.serve.errors import ApiError, wrong_field

MOST_CHOICES = 16
MOST_STOPS = 16

HARMLESS: Final = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "seed"}
)
_WHOLE = "tokens are drawn from the whole distribution, as in training"
_OWN_TOOLS = "the server has tools of its own (python -m engine serve --tools)"
NEUTRAL: Final[Mapping[str, tuple[object, str]]] = {
    "top_p": (1, _WHOLE),
    "presence_penalty": (0, _WHOLE),
    "frequency_penalty": (0, _WHOLE),
    "logit_bias": ({}, _WHOLE),
    "logprobs": (False, "log-probabilities are not part of an answer"),
    "tools": ([], _OWN_TOOLS),
    "tool_choice": ("auto", _OWN_TOOLS),
    "functions": ([], _OWN_TOOLS),
    "parallel_tool_calls": (True, "calls of one turn run at the same time"),
    "response_format": ({"type": "text"}, "answers are plain text"),
    "modalities": (["text"], "answers are plain text"),
}
"""Fields that we do not support, with the one value that asks for nothing, and why there is no other."""


def _joined(content: object) -> object:
    """Text, of a string or of text parts; null is no text."""
    if not isinstance(content, list):
        return "" if content is None else content
    texts = [_part(place, part) for place, part in enumerate(content)]
    return "\n".join(texts)


def _part(place: int, part: object) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise ValueError(f'part {place} should be {{"type": "text", "text": ...}}: only text is understood')
    return str(part["text"])


def _several(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


class ChatMessage(_Wire):
    """One message; ``name`` and ``tool_call_id`` are taken without effect, a tool's answers are told by their order."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_joined)] = ""
    name: str | None = None
    tool_call_id: str | None = None

    @property
    def is_system(self) -> bool:
        return self.role in ("system", "developer")


class StreamOptions(_Wire):
    """Options of a stream."""

    include_usage: bool = False


class ChatRequest(_Wire):
    """What is asked. Lengths are tokens, of the whole response, tool responses included."""

    model: str | None = None
    messages: list[ChatMessage] = Field(min_length=1)
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    temperature: float = Field(default=1.0, ge=0, le=2, allow_inf_nan=False)
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_several)] = Field(
        default=[], max_length=MOST_STOPS
    )
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    @property
    def most_tokens(self) -> int | None:
        """The smaller of the two limits that a client may have named."""
        named = [limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None]
        return min(named, default=None)


def read_request(body: bytes) -> ChatRequest:
    """The request in a body. Raises ``ApiError`` that names the first field that is wrong."""
    try:
        raw = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(raw, dict):
        raise ApiError(400, f"the body should be a JSON object, it is a {type(raw).__name__}", code="invalid_json")
    try:
        asked = ChatRequest.model_validate(_supported(raw))
    except ValidationError as error:
        raise _refusal(error) from error
    _check_order(asked)
    return asked


def _supported(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that decide something."""
    for name, (neutral, why) in NEUTRAL.items():
        if raw.get(name) not in (None, neutral):
            raise wrong_field(name, f"only {json.dumps(neutral)} is supported: {why}", code="unsupported_value")
    return {name: value for name, value in raw.items() if name not in HARMLESS and name not in NEUTRAL}


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    param = _param(first["loc"])
    if first["type"] == "extra_forbidden":
        return wrong_field(param, "unknown field, it would have no effect", code="unknown_parameter")
    if first["type"] == "missing":
        return wrong_field(param, "required", code="missing_required_parameter")
    return wrong_field(param, first["msg"].removeprefix("Value error, "))


def _param(place: Sequence[int | str]) -> str:
    """The way to a field as OpenAI writes it: ``messages[0].content``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")


def _check_order(asked: ChatRequest) -> None:
    """See the file's head; what cannot be rendered is refused rather than guessed."""
    before = "system"
    for place, message in enumerate(asked.messages):
        role, param = message.role, f"messages[{place}].role"
        if message.is_system and before != "system":
            raise wrong_field(param, f"{role} messages stand before all others")
        if role == "assistant" and before == "system":
            raise wrong_field(param, "the first to speak is the user")
        if role == "tool" and before not in ("assistant", "tool"):
            raise wrong_field(param, "a tool answers an assistant's message")
        before = "system" if message.is_system else role
    if before not in ("user", "tool"):
        raise wrong_field(f"messages[{place}].role", f"the last message is a user's or a tool's, not the {role}'s")


def system_text(messages: Sequence[ChatMessage]) -> str:
    """What the client adds to our own system prompt."""
    return "\n\n".join(message.content for message in messages if message.is_system)


def conversation(messages: Sequence[ChatMessage]) -> list[Message]:
    """The other messages as the renderer takes them; answers of tools in a row are one message."""
    found: list[Message] = []
    for message in messages:
        if message.role == "tool" and found and found[-1].role == "tool":
            found[-1] = Message("tool", (*found[-1].texts, message.content))
        elif not message.is_system:
            found.append(Message(message.role, (message.content,)))
    return found
