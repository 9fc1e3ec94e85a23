"""What people see when a page could not be made. Programs (``/api/``) get ``application/problem+json`` instead.

A database that is not reachable is no error of ours but a state of the installation: 503, and the page tries again by
itself. These pages touch neither database nor session. Leaves out 404 and 403: Django renders their templates.
"""

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string

from webapp.api.problems import problem

RETRY_AFTER_S = "5"


def server_error(request: HttpRequest) -> HttpResponse:
    """Django's ``handler500``: called while the exception is being handled."""
    away = isinstance(sys.exc_info()[1], OperationalError | InterfaceError)
    if away:
        return database_away(request)
    if request.path.startswith("/api/"):
        return problem(
            request,
            500,
            "Internal error",
            "Something went wrong on our side; the server's log tells more.",
            "internal_error",
        )
    return HttpResponse(render_to_string("500.html", _facts(request)), status=500)


def database_away(request: HttpRequest) -> HttpResponse:
    """503; a page that only reads comes back by itself, one that was sent must be sent again by its sender."""
    if request.path.startswith("/api/"):
        answer = problem(
            request, 503, "Database not reachable", "Nothing was stored; try again in a few seconds.", "unavailable"
        )
    else:
        facts = _facts(request) | {"retry": request.method in ("GET", "HEAD")}
        answer = HttpResponse(render_to_string("503.html", facts), status=503)
    answer["Retry-After"] = RETRY_AFTER_S
    return answer


def _facts(request: HttpRequest) -> dict[str, object]:
    return {"request_id": getattr(request, "request_id", "")}
