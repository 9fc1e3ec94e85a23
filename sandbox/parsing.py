"""From the bytes that came through a door to a request or an answer, or to the words that say what is wrong."""

import json
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sandbox.contract import ExecRequest, RequestRefused, SandboxUnavailable, first_fault

M = TypeVar("M", bound=BaseModel)


class FieldRefused(RequestRefused):
    """A refusal that says where. `field` is a dotted path; None: all of it."""

    def __init__(self, field: str | None, reason: str) -> None:
        super().__init__(f"the request is wrong at {field or 'its top'}: {reason}")
        self.field = field
        self.reason = reason


def json_in(body: bytes) -> Any:
    """Any JSON in UTF-8. Python's own reader, because pydantic's refuses the lone surrogates that models write."""
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise FieldRefused(None, f"not JSON: {error}") from error


def request_in(fields: Any) -> ExecRequest:
    """The request that parsed JSON describes. Raises `FieldRefused`."""
    try:
        return ExecRequest.model_validate(fields)
    except ValidationError as error:
        raise FieldRefused(*first_fault(error)) from error


def answer_in(model: type[M], fields: Any) -> M:
    """The answer that parsed JSON from the other side describes. Raises `SandboxUnavailable`: our fault, not theirs."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        field, reason = first_fault(error)
        raise SandboxUnavailable(f"the sandbox's answer is wrong at {field or 'its top'}: {reason}") from error
