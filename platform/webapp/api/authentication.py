"""Who asks: ``Authorization: Bearer sl_<key>_<secret>``. People with a session come through REST framework's own
class, with CSRF. Leaves out what a token may do: ``permissions.py``."""

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from webapp.accounts import services
from webapp.accounts.models import ApiToken, User


class ApiTokenAuthentication(BaseAuthentication):
    """A token that is wrong, expired or revoked is refused: it never falls back to the session."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = services.token_of(text.strip())
        if token is None or not token.user.is_active:
            raise AuthenticationFailed(
                "The API token is unknown, expired or revoked. Make one under /tokens.", code="invalid_token"
            )
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="starloom"'


class ApiTokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the schema says it."""

    target_class = "webapp.api.authentication.ApiTokenAuthentication"
    name = "apiToken"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "sl_<key>_<secret>"}
