"""What tests of pages share: a bundle that need not be built, and a browser in which somebody is logged in."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django_vite.core.asset_loader import DjangoViteAssetLoader

from tests.webapp.support import make_project, make_user
from webapp.accounts.models import Project, User

ENTRIES = ("src/app.ts", "src/run.ts", "src/theme.ts")


@pytest.fixture(autouse=True)
def bundle(tmp_path: Path, settings: Any) -> Iterator[None]:
    """A manifest with the entries of the front end, so that pages render before it is built."""
    files = {entry: {"file": f"assets/{Path(entry).stem}.js", "src": entry, "isEntry": True} for entry in ENTRIES}
    files["src/app.ts"]["css"] = ["assets/app.css"]
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(files))
    settings.DJANGO_VITE = {"default": {"manifest_path": manifest, "static_url_prefix": "ui/bundle"}}
    settings.WHITENOISE_USE_FINDERS = False  # no test of pages asks for a file, and looking for them takes its time
    DjangoViteAssetLoader._instance = None
    yield
    DjangoViteAssetLoader._instance = None


@pytest.fixture
def user(db: None) -> User:
    return make_user("ada")


@pytest.fixture
def project(user: User) -> Project:
    return make_project(user, "Sums")


@pytest.fixture
def client(user: User, project: Project) -> Client:
    """A browser in which Ada is logged in."""
    browser = Client()
    browser.force_login(user)
    return browser
