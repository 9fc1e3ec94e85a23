"""What a request may be told when it gets no answer: OpenAI's error body, and the status that belongs to it.

Leaves out where errors come from; what is no ``ApiError`` is a fault of ours (``door.py``).
"""

from collections.abc import Mapping
from typing import Any

BUSY_AGAIN_S, FAILED_AGAIN_S = 1, 5
"""Seconds after which a client may come again: to a full queue, after our own failure."""


class ApiError(Exception):
    """An answer that is an error. ``param`` names the field at fault, ``code`` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


def wrong_field(param: str | None, message: str, *, code: str = "invalid_value") -> ApiError:
    """400: the request itself is wrong, at ``param``."""
    return ApiError(400, f"{param}: {message}" if param else message, param=param, code=code)


def too_long(message: str) -> ApiError:
    """400: prompt and at least one token more do not fit."""
    return ApiError(400, message, param="messages", code="context_length_exceeded")


def busy(message: str) -> ApiError:
    """429: nothing of the request was begun."""
    again = {"Retry-After": str(BUSY_AGAIN_S)}
    return ApiError(429, message, kind="rate_limit_error", code="rate_limit_exceeded", headers=again)


def unavailable(message: str) -> ApiError:
    """503: an engine or the sandbox failed; whatever was sampled until then is no answer."""
    again = {"Retry-After": str(FAILED_AGAIN_S)}
    return ApiError(503, message, kind="server_error", code="unavailable", headers=again)
