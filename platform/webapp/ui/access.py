"""Who comes to a page: decorators and look-ups that every view uses.

What somebody may not see does not exist for them (404); the rule itself is ``accounts.policies``. Leaves out tokens and
scopes: pages are for people with a session.
"""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from django.contrib.auth.views import redirect_to_login
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django_htmx.http import HttpResponseClientRedirect

from webapp.accounts.models import User

M = TypeVar("M", bound=Model)
P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]


def nobody_yet() -> bool:
    """Whether this installation still waits for its first user."""
    return not User.objects.exists()


def signed_in(view: View[P]) -> View[P]:
    """Only for users: others are sent to log in, or to set up where there is no user at all."""

    @functools.wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if request.user.is_authenticated:
            return view(request, *args, **kwargs)
        if nobody_yet():
            return redirect("/setup")
        if request.headers.get("HX-Request"):  # a part of a page must not become the login form
            return HttpResponseClientRedirect("/login")
        return redirect_to_login(request.get_full_path())

    return guarded


def user_of(request: HttpRequest) -> User:
    """The user behind a view that ``signed_in`` guards."""
    return cast(User, request.user)


def found(rows: QuerySet[M], pk: str, what: str) -> M:
    """The row, or 404 that says what there is none of."""
    row = rows.filter(pk=pk).first()
    if row is None:
        raise Http404(f"There is no {what} {pk} that you can see.")
    return row
