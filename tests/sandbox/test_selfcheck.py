"""`python -m sandbox selfcheck`, above all where nothing is allowed: as an ordinary user under a pod's filter."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandbox.backend.conformance import exam, gaps
from tests.sandbox.support import PYTHON, ROOT

pytestmark = pytest.mark.e2e
USER = 65534
# The restricted profile of a pod: no capability, no new privileges, no namespace, no mount.
RESTRICT = """
import os, sys
from sandbox.backend.forkserver import syscalls
from sandbox.backend.forkserver.seccomp import Assembler

asm = Assembler()
asm.load_number()
for number in (155, 165, 272, 308):  # pivot_root mount unshare setns
    asm.refuse(number)
asm.refuse_if_bits(56, 0, syscalls.NAMESPACE_FLAGS & ~0x80)
asm.refuse(435, 38)  # clone3
asm.allow()
syscalls.drop_capabilities()
syscalls.forbid_new_privileges()
syscalls.install_filter(asm.program())
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def run(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    env = {"STARLOOM_SANDBOX_PYTHON": str(PYTHON), "PATH": os.environ["PATH"], "HOME": "/tmp"}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


def restricted(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """`python ARGUMENTS` as an ordinary user who may do nothing."""
    inner = [sys.executable, "-c", RESTRICT, *arguments]
    if os.geteuid():
        return run(*inner)
    environments = (Path(sys.executable), PYTHON)
    homes = [ROOT, *(python.parents[1] for python in environments)]
    homes += [python.resolve().parents[1] for python in environments]
    paths = ":".join(map(str, dict.fromkeys(homes)))
    return run(sys.executable, "-m", "sandbox.ordinary_user", str(USER), paths, *inner)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    done = restricted("-m", "sandbox", "selfcheck", "--json")
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["user_id"] != 0
    return found


def names(report: dict[str, Any], part: str) -> list[str]:
    verdicts = next(tier["verdicts"] for tier in report["tiers"] if tier["tier"] == "container")
    return [verdict["name"] for verdict in verdicts if verdict["part"] == part]


def test_every_check_of_the_container_tier_passes(report: dict[str, Any]) -> None:
    assert [verdict for tier in report["tiers"] for verdict in tier["verdicts"] if verdict["complaint"]] == []
    assert report["passed"]
    assert {check.name for check in exam("container")} <= {*names(report, "program")} | {"user id"}
    assert names(report, "session")
    assert names(report, "nothing left")


def test_its_gaps_are_still_there(report: dict[str, Any]) -> None:
    assert {check.name for check in gaps("container")} - {"user id"} == {*names(report, "gap")}


def test_the_full_tier_is_refused_with_what_it_lacks(report: dict[str, Any]) -> None:
    full = next(tier for tier in report["tiers"] if tier["tier"] == "full")
    assert full["verdicts"] == []
    for name in ("user namespace", "mount namespace", "pid namespace", "read-only root", "scratch with a quota"):
        assert f"{name}: " in full["unavailable"]
    assert "to mend it: " in full["unavailable"]


def test_where_the_wanted_tier_cannot_be_had_it_says_so_by_its_exit_code() -> None:
    done = restricted("-m", "sandbox", "selfcheck", "--tier", "full")
    assert done.returncode == 3
    assert "pid namespace" in done.stdout
    assert "not possible on this machine" in done.stdout


def test_a_node_takes_the_tier_that_it_can_have() -> None:
    code = (
        "import asyncio; from sandbox.client import local_sandbox\n"
        "async def tier():\n"
        "  async with local_sandbox(slots=1) as sandbox: print(sandbox.node.backend.tier)\n"
        "asyncio.run(tier())"
    )
    done = restricted("-c", code)
    assert done.stdout == "container\n", done.stderr


@pytest.mark.long
def test_both_tiers_pass_for_root_and_for_an_ordinary_user() -> None:
    done = run(sys.executable, "-m", "sandbox", "selfcheck", "--json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    views = [found] if os.geteuid() else [found, found["ordinary_user"]]
    assert [view["passed"] for view in views] == [True] * len(views)
