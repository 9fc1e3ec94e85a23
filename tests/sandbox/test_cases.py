"""The case tables: what programs must get, and what hostile ones must not, all through one `python -m sandbox batch`.

The sandbox is looked at from outside before and after: nothing that a program made is left. Rows of the kind `service`
are no programs; `SERVICE` names the tests that hold them.
"""

import asyncio
import json
import os
import re
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from sandbox.backend.leftovers import Traces, at_rest, leftovers
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits
from tests.sandbox.support import ROOT, SandboxThread, cases

pytestmark = pytest.mark.e2e
Row = dict[str, Any]
ROWS = [row for row in cases("sandbox") if row["kind"] != "service"]
HOSTILE = cases("hostile")
# What the table asks for in words.
HOSTILE_RIGHT: dict[str, Row] = {
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
SERVICE = {
    "D077": ["broker/test_exam.py::test_a_call_that_found_no_slot_in_time_is_told_so_and_never_runs"],
    "D079": [
        "broker/test_valkey.py::test_a_thousand_waiting_calls_share_three_connections",
        "test_gateway.py::test_a_thousand_clients_that_come_at_once_are_all_served",
    ],
    "D081": [
        "test_recovery.py::test_a_killed_zygote_is_replaced_and_its_calls_run_again",
        "test_cluster.py::test_a_node_killed_in_mid_batch_loses_no_call_and_only_its_own_sessions",
    ],
    "D083": ["test_flatness.py::test_fifty_thousand_calls_leave_a_node_as_it_was"],
    "D085": ["test_http_door.py::test_health_needs_no_token_and_answers_while_a_program_runs"],
    "D087": [
        "test_serving.py::test_what_a_killed_node_ran_is_told_and_the_client_goes_on_with_the_next",
        "test_gateway.py::test_a_cell_whose_connection_breaks_is_lost_and_never_sent_again",
    ],
    "D089": ["test_cases.py::test_a_clock_that_jumps_changes_no_limit"],
}
REDIS_PORTS = (6379, 6399)  # those that the rows try
SECRETS = {"REDIS_URL": "redis://:secret@127.0.0.1:6399", "STARLOOM_SECRET": "must not be seen by programs"}
IMPORTS = ("sys", "numpy", "sympy", "scipy")  # one for each kind of zygote
FIRST = [{"id": f"first {n} {name}", "code": f"import {name}"} for n in range(4) for name in IMPORTS]
AFTERWARDS = [{"id": f"after {n}", "code": "import os\nprint(os.listdir('.'), os.getpid())"} for n in range(8)]


def request(row: Row) -> Row:
    given = row["input"]
    if row["kind"] == "hostile":
        return {"id": row["id"], **given}
    names = {"wall_s": "time_limit_s", "memory_mb": "memory_limit_mb", "output_bytes": "output_limit_bytes"}
    line = {"id": row["id"], "code": given["code"], "limits": {ours: given[name] for ours, name in names.items()}}
    optional = {"stdin": given.get("stdin"), "cells": given.get("history")}
    return line | {name: value for name, value in optional.items() if value is not None}


@dataclass(frozen=True)
class Ran:
    """What came of all rows by their ids, and what was to be seen from outside."""

    answers: dict[str, Row]
    afterwards: dict[str, Row]
    left_when_quiet: list[str]
    exit_code: int
    left_at_the_end: list[str]


@pytest.fixture(scope="module")
def ran() -> Iterator[Ran]:
    with ExitStack() as stack:
        _something_to_reach(stack)
        batch = stack.enter_context(_batch())
        assert {answer["status"] for answer in _answers(batch, FIRST).values()} == {"ok"}
        before = asyncio.run(at_rest(batch.pid))
        answers = _answers(batch, [request(row) for row in (*ROWS, *HOSTILE)])
        left_when_quiet = asyncio.run(leftovers(batch.pid, before))
        afterwards = _answers(batch, AFTERWARDS)
        batch.stdin.close()
        exit_code = batch.wait(30)
        yield Ran(answers, afterwards, left_when_quiet, exit_code, _remains(batch.pid, before))


def _remains(pid: int, before: Traces) -> list[str]:
    """Places where a node that has ended left something."""
    places = [*before.groups, *before.files, *Path(tempfile.gettempdir()).glob(f"starloom-scratch-{pid}-*")]
    return [str(place) for place in places if Path(place).exists()]


def _batch() -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "sandbox", "batch", "--slots", "4", "--tier", "full"]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **SECRETS}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _answers(batch: "subprocess.Popen[str]", lines: list[Row]) -> dict[str, Row]:
    """Send these lines; their answers by id, once all are there."""
    writer = threading.Thread(target=_send, args=(batch.stdin, lines))
    writer.start()
    answers = [json.loads(batch.stdout.readline()) for _ in lines]
    writer.join()
    return {answer["id"]: answer for answer in answers}


def _send(stdin: IO[str], lines: list[Row]) -> None:
    for line in lines:
        stdin.write(json.dumps(line) + "\n")
    stdin.flush()


class _Pong(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(b"+PONG\r\n")


def _something_to_reach(stack: ExitStack) -> None:
    """Answer on the ports that the rows try to reach, where nobody does."""
    for port in REDIS_PORTS:
        try:
            server = stack.enter_context(socketserver.ThreadingTCPServer(("127.0.0.1", port), _Pong))
        except OSError:
            continue  # a server of this machine is there
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        stack.callback(server.shutdown)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_case(row: Row, ran: Ran) -> None:
    answer, right = ran.answers[row["id"]], row["expected"]
    assert answer.get("status") == right["status"], answer
    for field in ("stdout", "exit_code"):
        if field in right:
            assert answer[field] == right[field]
    for field in ("stdout", "stderr"):
        assert right.get(f"{field}_contains", "") in answer[field]
    if right["status"] == "timeout":
        assert row["input"]["time_limit_s"] <= answer["wall_s"] < row["input"]["time_limit_s"] + 2


def test_a_left_daemon_does_not_delay_the_answer(ran: Ran) -> None:
    assert ran.answers["D021"]["wall_s"] < 2


def test_no_secret_in_the_output(ran: Ran) -> None:
    assert "root:" not in ran.answers["D051"]["stdout"]


@pytest.mark.parametrize("row", HOSTILE, ids=lambda row: row["name"])
def test_hostile(row: Row, ran: Ran) -> None:
    answer, right = ran.answers[row["id"]], HOSTILE_RIGHT.get(row["name"], {})
    assert "ESCAPED" not in answer["stdout"]
    assert answer["status"] == right.get("status", answer["status"])
    assert answer["exit_code"] == right.get("exit_code", answer["exit_code"])
    assert re.fullmatch(right.get("stdout", ".*"), answer["stdout"].rstrip("\n"), re.DOTALL)
    assert right.get("stderr", "") in answer["stderr"]


def test_nothing_is_left_when_all_are_answered(ran: Ran) -> None:
    assert ran.left_when_quiet == []


def test_calls_work_afterwards_and_see_nothing_of_the_earlier_ones(ran: Ran) -> None:
    assert {answer["stdout"] for answer in ran.afterwards.values()} == {"[] 1\n"}


def test_nothing_is_left_of_the_sandbox_itself(ran: Ran) -> None:
    assert ran.exit_code == 0
    assert ran.left_at_the_end == []


@pytest.mark.parametrize(
    "row", [row for row in cases("sandbox") if row["kind"] == "service"], ids=lambda row: row["id"]
)
def test_a_row_about_the_service_has_its_tests(row: Row) -> None:
    for place in SERVICE[row["id"]]:
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / "tests/sandbox" / file).read_text(), place


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_clock_that_jumps_changes_no_limit(
    jump_s: int, sandbox: SandboxThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's clock is everybody's, so ours is bent instead: the sandbox runs in this process."""
    true_time = time.time

    async def work() -> list[ExecResult]:
        limits = {"print('fine')": Limits(wall_s=5), "while True: pass": Limits(wall_s=1)}
        code = "import time; time.sleep(0.5)\n"
        requests = [ExecRequest(code=code + end, limits=of_call) for end, of_call in limits.items()]
        calls = [asyncio.create_task(sandbox.client.execute(request)) for request in requests]
        await asyncio.sleep(0.2)
        monkeypatch.setattr(time, "time", lambda: true_time() + jump_s)
        return await asyncio.gather(*calls)

    short, endless = sandbox.run(work())
    assert (short.status, endless.status) == (ExecStatus.OK, ExecStatus.TIMEOUT)
    assert 1 <= endless.wall_s < 3
    assert 0.4 < short.wall_s < 3
