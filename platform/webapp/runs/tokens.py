"""Run tokens: what an engine proves itself with. Signed, not stored: (run, launch) and our signature."""

from django.core import signing

_SALT = "starloom.run-token"


class WrongToken(Exception):
    """Not a run token of ours."""


def make(run_id: str, launch: int) -> str:
    return "slr_" + signing.Signer(salt=_SALT).sign_object([run_id, launch])


def read(token: str) -> tuple[str, int]:
    """(run id, launch) of a token. Raises ``WrongToken``."""
    try:
        run_id, launch = signing.Signer(salt=_SALT).unsign_object(token.removeprefix("slr_"))
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise WrongToken("not a run token of this platform") from error
    return str(run_id), int(launch)
