"""What a token may do: every view says which scope each of its methods needs. People with a session need none.

Leaves out whose things they are: views take rows through ``accounts.policies`` and answer 404 for the rest.
"""

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from webapp.accounts.models import ApiToken
from webapp.accounts.scopes import SCOPES
from webapp.api.problems import Problem

ANY_SCOPE = ""
"""For what every token may do."""


class HasScope(BasePermission):
    """Asks ``view.required_scopes[method]``. A method that declares none is closed to everybody."""

    message = "This method declares no scope."

    def has_permission(self, request: Request, view: Any) -> bool:
        if not request.user or not request.user.is_authenticated:
            return False
        method = "GET" if request.method == "HEAD" else str(request.method)
        if method.lower() not in view.http_method_names or not hasattr(view, method.lower()):
            return True  # answered 405
        if method not in view.required_scopes:
            return False
        require_scope(request, view.required_scopes[method])
        return True


def require_scope(request: Request, scope: str) -> None:
    """Raise 403 that names the scope when the request came with a token that lacks it."""
    token = request.auth
    if isinstance(token, ApiToken) and scope and scope not in token.scopes:
        raise Problem(
            403,
            "Scope missing",
            f"The token “{token.name}” lacks the scope {scope} ({SCOPES[scope]}).",
            "missing_scope",
            required_scope=scope,
            scopes=token.scopes,
        )
