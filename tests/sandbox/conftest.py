"""One sandbox for the whole session: it starts once, and what one test does to it the next would notice."""

import os
from collections.abc import Iterator

import pytest

from tests.sandbox.support import SandboxThread


@pytest.fixture(scope="session")
def sandbox() -> Iterator[SandboxThread]:
    os.environ["STARLOOM_SECRET"] = "must not be seen by programs"
    with SandboxThread(slots=4) as running:
        yield running
