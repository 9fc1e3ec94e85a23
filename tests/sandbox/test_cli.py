"""The commands, with good and bad input. Lines of `batch`: test_batch.py; the command `node`: test_serving.py."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sandbox.contract import SandboxStatus
from sandbox.doors.desk import Desk
from sandbox.doors.http_door import HttpDoor
from tests.sandbox.support import Scripted, cli_here, sandbox_cli

pytestmark = pytest.mark.e2e


def test_exec_shows_output_also_for_who_lets_nobody_read_his_files(tmp_path: Path) -> None:
    program, stdin = tmp_path / "p.py", tmp_path / "in.txt"
    program.write_text("print(input().upper())")
    stdin.write_text("hé")
    done = sandbox_cli("exec", program, "--stdin", stdin, umask=0o077)
    assert (done.returncode, done.stdout, done.stderr) == (0, "HÉ\n", "")


def test_exec_json_and_limits(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text("while True: pass")
    done = sandbox_cli("exec", program, "--json", "--wall-s", "0.5")
    result = json.loads(done.stdout)
    assert (done.returncode, result["status"]) == (1, "timeout")
    assert "wall_s = 0.5" in result["detail"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("exec", "absent.py"), "absent.py"),
        (("exec", "-", "--memory-mb", "1"), "memory_mb"),
        (("exec", "-", "--at", "tcp://host"), "--at: a sandbox's URL looks like unix:"),
        (("exec", "-", "--at", "unix:/s", "--tier", "full"), "--slots and --tier"),
        (("status",), "python -m sandbox node --socket"),
        (("token", "a b", "--tokens", "/nonexistent/t"), "token's name"),
        (("token", "ada", "--tokens", "/nonexistent/t"), "/nonexistent/t"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], complaint: str) -> None:
    code, stdout, stderr = cli_here(*arguments)
    assert (code, stdout) == (2, "")
    assert complaint in stderr


def test_batch_keeps_order_and_goes_on_after_bad_lines() -> None:
    lines: list[Any] = [
        {"id": "slow", "code": "import time; time.sleep(0.3); print(input())", "stdin": "\ud800x"},
        {"id": "quick", "code": "print(2)", "limits": {"wall_s": 5}},
        {"id": "no code"},
        {"id": "last", "code": "1/0"},
    ]
    done = sandbox_cli("batch", "--slots", "2", stdin="\n".join(map(json.dumps, lines)))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr
    assert [answer["id"] for answer in answers] == ["slow", "quick", "no code", "last"]
    assert [answer.get("status") for answer in answers] == ["ok", "ok", None, "error"]
    assert answers[2]["error"]["line"] == 3
    assert answers[3]["error"]["type"] == "ZeroDivisionError"


async def test_status_shows_nodes_or_says_how_to_start_one() -> None:
    class Empty(Scripted):
        async def status(self) -> SandboxStatus:
            return SandboxStatus(nodes=(), queued_interactive=0, queued_training=5)

    async def shown(submitter: Scripted, *options: str) -> tuple[int, str]:
        door = HttpDoor(Desk(submitter), "127.0.0.1", 0, None)
        place = await door.open()
        code, stdout, _ = await asyncio.to_thread(cli_here, "status", "--at", place, *options)
        await door.close()
        return code, " ".join(stdout.split())

    code, page = await shown(Scripted())
    assert (code, "1/4" in page, "Waiting: 7 interactive, 8 training calls" in page) == (0, True, True)
    code, page = await shown(Empty())
    assert (code, "python -m sandbox node --valkey URL" in page, "5 training" in page) == (1, True, True)
    code, page = await shown(Scripted(), "--json")
    assert (code, json.loads(page)["queued_training"]) == (0, 8)


@pytest.mark.parametrize(
    ("arguments", "more", "complaint"),
    [
        (("exec", "-"), {"STARLOOM_SANDBOX_PYTHON": "/nonexistent/python"}, "make setup"),
        (("exec", "-", "--tier", "none"), {}, "STARLOOM_SANDBOX_ALLOW_WEAK=1"),
    ],
)
def test_our_failure_is_not_the_programs(arguments: tuple[str, ...], more: dict[str, str], complaint: str) -> None:
    code, stdout, stderr = cli_here(*arguments, more=more)
    assert (code, stdout) == (3, "")
    assert complaint in stderr
