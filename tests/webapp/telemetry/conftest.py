"""A run whose engine has been launched and has not said a word yet."""

from pathlib import Path

import pytest

from tests.webapp.support import make_run
from webapp.runs.models import Run


@pytest.fixture
def run(db: None, tmp_path: Path) -> Run:
    return make_run(state="starting", attempt=0, folder=str(tmp_path / "run"))
