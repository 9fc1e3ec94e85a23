"""A request's id: taken from ``X-Request-ID`` where it is harmless, else made; in errors, logs and the answer."""

import re
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from webapp.config.ids import new_id

_HARMLESS = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIdMiddleware:
    """Sets ``request.request_id`` and echoes it."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        request.request_id = given if _HARMLESS.fullmatch(given) else new_id("req")  # type: ignore[attr-defined]
        response = self._get_response(request)
        response["X-Request-ID"] = request.request_id  # type: ignore[attr-defined]
        return response
