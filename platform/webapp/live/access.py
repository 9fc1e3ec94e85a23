"""Who may watch a run over a socket: a person with a session, as ``accounts.policies`` says. Asked again while the
socket is open, because people log out and lose projects."""

from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from webapp.accounts.policies import visible
from webapp.runs.models import Run

NOT_LOGGED_IN = 4401
NOT_VISIBLE = 4404


def refusal(session_key: str | None, run_id: str) -> int | None:
    """The close code for a session that may not watch the run, or None. Reads the session afresh. Blocks."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    if user.is_anonymous:
        return NOT_LOGGED_IN
    return None if visible(Run.objects.filter(pk=run_id), user).exists() else NOT_VISIBLE
