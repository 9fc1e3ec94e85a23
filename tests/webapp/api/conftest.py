"""Two people, a client with a token for each, and rows for lists. Requests go through all of Django."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from tests.webapp.support import make_project, make_run, make_user
from webapp.accounts.models import Project, User
from webapp.accounts.scopes import SCOPES
from webapp.accounts.services import create_token
from webapp.runs.models import Run


@pytest.fixture(autouse=True)
def _no_scan(settings: Any) -> None:
    """Every test client builds the middleware anew, and WhiteNoise would look at all static files each time."""
    settings.WHITENOISE_AUTOREFRESH = True


@pytest.fixture
def owner(db: None) -> User:
    return make_user("owner")


@pytest.fixture
def stranger(db: None) -> User:
    return make_user("stranger")


@pytest.fixture
def project(owner: User) -> Project:
    return make_project(owner)


@pytest.fixture
def run(project: Project) -> Run:
    return make_run(project, state="running")


ClientOf = Callable[..., APIClient]


@pytest.fixture
def client_of() -> ClientOf:
    """A client that sends a token of a user, with all scopes or those that are named."""

    def make(user: User, *scopes: str) -> APIClient:
        _, text = create_token(user=user, name="test", scopes=scopes or list(SCOPES), days=1)
        client = APIClient()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
        return client

    return make


@pytest.fixture
def api(owner: User, client_of: ClientOf) -> APIClient:
    return client_of(owner)
