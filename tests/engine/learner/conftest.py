"""Fixtures: a model folder for the session, and learners that are closed when their test ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.learner.support import Open, make_folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def opening(model_folder: Path) -> Iterator[Open]:
    opens = Open(model_folder, [])
    yield opens
    for learner in opens.opened:
        learner.close()
