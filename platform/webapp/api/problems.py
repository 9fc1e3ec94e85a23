"""Errors as ``application/problem+json`` (RFC 9457): one writer for REST, ingest and whatever else answers programs.

``problem`` makes an answer by hand, ``Problem`` is raised for one, and ``handle`` is Django REST framework's exception
handler: every exception becomes a problem, so that bad input never ends in a page of HTML. ``errors[]`` points into
the body (``pointer``, RFC 6901) or names a query parameter (``parameter``). Leaves out rules: services raise, this
file only words.
"""

import logging
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

import orjson
import psycopg
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.core.signals import got_request_exception
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from kombu.exceptions import OperationalError as BrokerAway
from redis.exceptions import ConnectionError as ValkeyAway
from redis.exceptions import TimeoutError as ValkeySilent
from rest_framework import exceptions
from rest_framework.request import Request

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 5


class Problem(exceptions.APIException):
    """An answer that is an error, raised from anywhere below a view; ``extra`` are further members of its body."""

    def __init__(self, status: int, title: str, detail: str, code: str, **extra: Any) -> None:
        super().__init__(detail, code)
        self.status_code, self.title, self.said, self.code = status, title, detail, code
        self.extra = extra


class WrongInput(Problem):
    """400 with every wrong part named. ``errors``: dicts with ``pointer`` or ``parameter``, and ``message``."""

    def __init__(self, errors: list[dict[str, Any]], code: str = "invalid") -> None:
        places = [error.get("pointer") or error.get("parameter") or "the body" for error in errors]
        said = "; ".join(f"{place}: {error['message']}" for place, error in zip(places, errors, strict=True))
        super().__init__(400, "Wrong input", said[:2000], code, errors=errors)


def problem(
    request: HttpRequest | Request,
    status: int,
    title: str,
    detail: str,
    code: str,
    headers: Mapping[str, str] | None = None,
    **extra: Any,
) -> HttpResponse:
    """A problem as an answer. ``code`` is for programs, ``detail`` for people: what was expected and what mends it."""
    body = {
        "type": f"urn:starloom:problem:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": request.path,
        "request_id": getattr(request, "request_id", ""),
        "code": code,
        **extra,
    }
    return HttpResponse(orjson.dumps(body, default=str), status=status, content_type=CONTENT_TYPE, headers=headers)


def handle(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """What REST framework asks for an exception's answer; what nobody foresaw is logged and answered 500."""
    request: Request = context["request"]
    if isinstance(error, Problem):
        return problem(request, error.status_code, error.title, error.said, error.code, **error.extra)
    if isinstance(error, exceptions.ValidationError):
        return handle(WrongInput([*pointed(error.detail)]), context)
    if isinstance(error, exceptions.APIException):
        return _framework(request, error)
    for kinds, status, title, detail, code in _FORESEEN:
        if isinstance(error, kinds):
            headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
            if status != 404:
                logger.warning("%s %s: %s: %s", request.method, request.path, code, error)
            return problem(request, status, title, detail, code, headers)
    logger.error("%s %s", request.method, request.path, exc_info=error)
    got_request_exception.send(sender=None, request=request._request)
    said = "The error was written to the server's log under this request_id."
    return problem(request, 500, "Internal error", said, "internal_error")


def _framework(request: Request, error: exceptions.APIException) -> HttpResponse:
    """An exception of REST framework's own, with the headers that belong to it."""
    headers = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = f"{wait:.0f}"
    codes = error.get_codes()
    code = codes if isinstance(codes, str) else error.default_code
    return problem(request, error.status_code, HTTPStatus(error.status_code).phrase, str(error.detail), code, headers)


_AWAY = (
    OperationalError,
    InterfaceError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    BrokerAway,
    ValkeyAway,
    ValkeySilent,
    ConnectionError,
)
# Exceptions of Django and of the servers behind it -> status, title, detail, code.
_FORESEEN: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int, str, str, str], ...] = (
    (Http404, 404, "Not found", "There is nothing here, or nothing that you may see.", "not_found"),
    (PermissionDenied, 403, "Forbidden", "You may not do this.", "permission_denied"),
    (RequestDataTooBig, 413, "Body too large", "The body is larger than this address takes.", "body_too_large"),
    (_AWAY, 503, "Not available now", "The database or Valkey does not answer; try again.", "unavailable"),
    (DataError, 400, "Wrong input", "A value does not fit into the database.", "invalid"),
)


def pointed(detail: Any, place: str = "") -> Iterator[dict[str, Any]]:
    """REST framework's nested messages as flat errors with JSON pointers. A key that starts with ``/`` is a pointer
    already: it came from a service that knows the place inside its field."""
    if isinstance(detail, Mapping):
        for key, below in detail.items():
            yield from pointed(below, place + below_key(str(key)))
    elif isinstance(detail, list) and any(isinstance(item, Mapping) for item in detail):
        for number, item in enumerate(detail):
            yield from pointed(item, f"{place}/{number}")
    elif isinstance(detail, list):
        for item in detail:
            yield from pointed(item, place)
    else:
        yield {"pointer": place, "message": str(detail), "code": getattr(detail, "code", None) or "invalid"}


def below_key(key: str) -> str:
    """One step of a JSON pointer; what comes of the object as a whole (``non_field_errors``) stays where it is."""
    if key == "non_field_errors":
        return ""
    return key if key.startswith("/") else "/" + key.replace("~", "~0").replace("/", "~1")
