"""One Valkey for all tests that leave it alone; each cluster has a namespace of its own in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.broker.support import ValkeyServer


@pytest.fixture(scope="session")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path_factory.mktemp("valkey")).start()
    yield server
    server.kill()


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """One that a test may kill."""
    server = ValkeyServer(tmp_path).start()
    yield server
    server.kill()
