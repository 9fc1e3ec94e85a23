"""The walk-through of docs/api.md, executed as it stands against a platform that runs."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.webapp.api.walkthrough import blocks

pytestmark = [pytest.mark.e2e]

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
def test_the_walk_through_does_what_it_says(platform_stack: Any, tmp_path: Path) -> None:
    script = tmp_path / "walk-through.sh"
    script.write_text("set -euo pipefail\n" + "\n".join(blocks(ROOT / "docs/api.md")))
    environment = {**os.environ, "STARLOOM_URL": platform_stack.url, "TOKEN": platform_stack.token}
    done = subprocess.run(
        ["bash", "-x", str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=840
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert "paused rl" in done.stdout
    assert "stopped" in done.stdout
    assert (tmp_path / "reward.csv").read_text().startswith("key,x,last")
    assert len((tmp_path / "trajectories.ndjson").read_text().splitlines()) >= 16
