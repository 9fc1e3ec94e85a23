"""Requests and outcomes as bytes: JSON in ASCII, in which lone surrogates of model text travel as escapes."""

import json

from pydantic import ValidationError

from sandbox.contract import (
    MOST_REQUEST_BYTES,
    ExecRequest,
    ExecResult,
    RequestRefused,
    SandboxBusy,
    SandboxUnavailable,
    SessionLost,
    first_fault,
)

_RESULT = "result"
_FAILURES: dict[str, type[Exception]] = {
    "busy": SandboxBusy,
    "lost": SessionLost,
    "refused": RequestRefused,
    "unavailable": SandboxUnavailable,
}


def encode_request(request: ExecRequest) -> bytes:
    """Raises `RequestRefused` for one that is too large."""
    data = json.dumps(request.model_dump()).encode()
    if len(data) > MOST_REQUEST_BYTES:
        raise RequestRefused(f"the request has {len(data)} bytes, {MOST_REQUEST_BYTES} are allowed")
    return data


def decode_request(data: bytes) -> ExecRequest:
    """Raises `RequestRefused` for what another version of us may have sent."""
    try:
        return ExecRequest.model_validate(json.loads(data))
    except ValidationError as error:
        field, message = first_fault(error)
        raise RequestRefused(f"this node does not take the request: {field or 'its top'}: {message}") from error
    except ValueError as error:
        raise RequestRefused(f"this node does not take the request: it is no JSON: {error}") from error


def encode_outcome(outcome: ExecResult | Exception) -> tuple[str, bytes]:
    """The kind of an answer and its body."""
    if isinstance(outcome, ExecResult):
        return _RESULT, json.dumps(outcome.model_dump()).encode()
    kinds = [kind for kind, failure in _FAILURES.items() if isinstance(outcome, failure)]
    return (kinds or ["unavailable"])[0], encode_text(str(outcome))


def encode_text(text: str) -> bytes:
    """The body of an answer that is an exception."""
    return json.dumps(text).encode()


def decode_outcome(kind: str, body: bytes) -> ExecResult | Exception:
    """What `encode_outcome` was given; `SandboxUnavailable` for what another version of us may have sent."""
    try:
        if kind == _RESULT:
            return ExecResult.model_validate(json.loads(body))
        return _FAILURES[kind](json.loads(body))
    except (ValueError, KeyError) as error:
        return SandboxUnavailable(f"a node sent an answer of the kind {kind!r} that is none: {error}")
