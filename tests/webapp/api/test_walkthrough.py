"""The walk-through of docs/api.md without a platform: bash can read it, and every address in it is one of ours.

``tests/e2e/test_api_walkthrough.py`` executes it.
"""

import re
import subprocess
from pathlib import Path

import pytest
from django.urls import resolve

from tests.webapp.api.walkthrough import blocks
from webapp.accounts.scopes import SCOPES
from webapp.config.ids import new_id

PAGE = Path("docs/api.md")
BLOCKS = blocks(PAGE)


def test_the_page_walks_from_a_token_to_an_export() -> None:
    text = "\n".join(BLOCKS)
    for part in ("create_token", "Idempotency-Key", "updates?since=", "/pause", "/resume", "/stop", "/export"):
        assert part in text


@pytest.mark.parametrize("block", BLOCKS)
def test_bash_can_read_every_block(block: str) -> None:
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_address_in_it_exists() -> None:
    text = re.sub(r"\$RUN(?=[/?\"])", "/api/v1/runs/$RUN_ID", "\n".join(BLOCKS).replace("$STARLOOM_URL", ""))
    addresses = set(re.findall(r'/api/v1/[^\s"?)]+', text))
    assert len(addresses) >= 10
    for address in addresses:
        # What is not there is answered by a view without a name.
        assert resolve(re.sub(r"\$\w+", new_id("cmd"), address)).url_name, f"{address} is no address of ours"


def test_the_page_names_every_scope() -> None:
    for scope in SCOPES:
        assert f"| `{scope}` |" in PAGE.read_text()
