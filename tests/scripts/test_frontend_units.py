"""The front end's own tests (`frontend/test/`), run by the Node that builds it."""

import re
from pathlib import Path

import pytest

from scripts.environments import both
from scripts.node import Node

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.e2e
def test_they_pass() -> None:
    folder = ROOT / "frontend"
    files = [str(path.relative_to(folder)) for path in sorted((folder / "test").glob("*.test.ts"))]
    assert files
    output = Node(both(ROOT)[0]).run(["--test", "--test-reporter=tap", *files], folder, "node --test")
    assert re.search(r"^# pass [1-9]", output, re.MULTILINE)
    assert "# fail 0" in output
