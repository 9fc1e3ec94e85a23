"""The case tables: what programs must get, and what hostile ones must not. Rows run on one shared sandbox."""

import asyncio
import re
from typing import Any

import pytest

from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits
from tests.sandbox.support import SandboxThread, cases, offspring

pytestmark = pytest.mark.e2e
LATER = {"session", "service"}  # kinds that belong to sessions and to the cluster
ROWS = [row for row in cases("sandbox") if row["kind"] not in LATER]
HOSTILE = cases("hostile")
# What the table asks for in words.
HOSTILE_RIGHT: dict[str, dict[str, Any]] = {
    "fork_bomb": {"stdout": r"blocked after 63 .*"},
    "memory_bomb": {"status": "memory"},
    "disk_fill": {"stdout": r"blocked \d+ MB .*"},
    "inode_fill": {"stdout": r"blocked \d+ No space left.*"},
    "loop_python": {"status": "timeout"},
    "loop_c_regex": {"status": "timeout"},
    "mask_and_sleep": {"status": "timeout"},
    "daemon_keeps_stdout": {"status": "ok", "stdout": "spawned"},
    "kill_parent": {"status": "ok"},
    "forge_marker": {"exit_code": 7, "stdout": "fake answer\n@@E\n@@D0.0001"},
    "os_exit": {"exit_code": 5, "stdout": "x"},
    "base_exception": {"exit_code": 1, "stderr": "B: b"},
    "abort": {"status": "error"},
    "stdin_beyond": {"exit_code": 1, "stderr": "EOFError"},
    "nul_in_code": {"exit_code": 1, "stderr": "SyntaxError"},
    "surrogate_code": {"exit_code": 1},
    "atexit_hang": {"status": "timeout", "stdout": "done"},
    "zombies": {"status": "ok"},
}


def _request(row: dict[str, Any]) -> ExecRequest:
    given = row["input"]
    limits = Limits(
        wall_s=given["time_limit_s"],
        memory_mb=given["memory_limit_mb"],
        output_bytes=given["output_limit_bytes"],
    )
    return ExecRequest(id=row["id"], code=given["code"], stdin=given.get("stdin", ""), limits=limits)


def _run_all(sandbox: SandboxThread, requests: list[ExecRequest]) -> dict[str, ExecResult]:
    async def work() -> list[ExecResult]:
        return await asyncio.gather(*(sandbox.client.execute(request) for request in requests))

    return {result.id: result for result in sandbox.run(work())}


@pytest.fixture(scope="module")
def results(sandbox: SandboxThread) -> dict[str, ExecResult]:
    return _run_all(sandbox, [_request(row) for row in ROWS])


@pytest.fixture(scope="module")
def hostile_results(sandbox: SandboxThread) -> dict[str, ExecResult]:
    requests = [
        ExecRequest(id=row["name"], code=row["input"]["code"], limits=Limits(**row["input"]["limits"]))
        for row in HOSTILE
    ]
    return _run_all(sandbox, requests)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_case(row: dict[str, Any], results: dict[str, ExecResult]) -> None:
    result, right = results[row["id"]], row["expected"]
    assert result.status == right["status"], result
    for field in ("stdout", "exit_code"):
        if field in right:
            assert getattr(result, field) == right[field]
    for field in ("stdout", "stderr"):
        assert right.get(f"{field}_contains", "") in getattr(result, field)
    if row["kind"] == "timeout":
        assert row["input"]["time_limit_s"] <= result.wall_s < row["input"]["time_limit_s"] + 2
    if result.status is ExecStatus.MEMORY:
        assert "memory_mb = 512" in result.detail


def test_a_left_daemon_does_not_delay_the_answer(results: dict[str, ExecResult]) -> None:
    assert results["D021"].wall_s < 2


def test_no_secret_in_the_output(results: dict[str, ExecResult]) -> None:
    assert "root:" not in results["D051"].stdout


@pytest.mark.parametrize("row", HOSTILE, ids=lambda row: row["name"])
def test_hostile(row: dict[str, Any], hostile_results: dict[str, ExecResult]) -> None:
    result, right = hostile_results[row["name"]], HOSTILE_RIGHT.get(row["name"], {})
    assert "ESCAPED" not in result.stdout
    assert result.status == right.get("status", result.status)
    assert result.exit_code == right.get("exit_code", result.exit_code)
    assert re.fullmatch(right.get("stdout", ".*"), result.stdout.rstrip("\n"), re.DOTALL)
    assert right.get("stderr", "") in result.stderr


def test_after_all_that_nothing_is_left_and_calls_work(
    sandbox: SandboxThread, results: dict[str, ExecResult], hostile_results: dict[str, ExecResult]
) -> None:
    backend = sandbox.client.node.backend
    after = _run_all(sandbox, [ExecRequest(id=str(n), code="print('fine')") for n in range(8)])
    assert {result.stdout for result in after.values()} == {"fine\n"}
    for name, pid in backend.zygote_pids().items():  # type: ignore[attr-defined]
        assert offspring(pid) == set(), f"left by the {name} zygote's programs"
