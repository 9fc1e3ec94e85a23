"""The two commands, with good and bad input."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.support import PYTHON, ROOT

pytestmark = pytest.mark.e2e


def sandbox_cli(*arguments: str | Path, stdin: str = "", umask: int = -1) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sandbox", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"STARLOOM_SANDBOX_PYTHON": str(PYTHON), "PATH": "/usr/bin:/bin"},
        timeout=60,
        umask=umask,
        check=False,
    )


def test_it_works_for_who_lets_nobody_read_his_files() -> None:
    assert sandbox_cli("exec", "-", stdin="print(6 * 7)", umask=0o077).stdout == "42\n"


def test_exec_shows_output(tmp_path: Path) -> None:
    program, stdin = tmp_path / "p.py", tmp_path / "in.txt"
    program.write_text("print(input().upper())")
    stdin.write_text("hé")
    done = sandbox_cli("exec", program, "--stdin", stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, "HÉ\n", "")


def test_exec_json_and_limits(tmp_path: Path) -> None:
    program = tmp_path / "p.py"
    program.write_text("while True: pass")
    done = sandbox_cli("exec", program, "--json", "--wall-s", "0.5")
    result = json.loads(done.stdout)
    assert (done.returncode, result["status"]) == (1, "timeout")
    assert "wall_s = 0.5" in result["detail"]


@pytest.mark.parametrize(
    ("arguments", "complaint"), [(("absent.py",), "absent.py"), (("-", "--memory-mb", "1"), "memory_mb")]
)
def test_exec_names_bad_input(arguments: tuple[str, ...], complaint: str) -> None:
    done = sandbox_cli("exec", *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_batch_keeps_order_and_goes_on_after_bad_lines() -> None:
    lines: list[Any] = [
        {"id": "slow", "code": "import time; time.sleep(0.3); print(input())", "stdin": "\ud800x"},
        {"id": "quick", "code": "print(2)", "limits": {"wall_s": 5}},
        {"id": "key", "code": "", "limits": {"memory_gb": 1}},
        {"id": "cells", "cells": []},
        {"code": "print(1)"},
        {"id": "no code"},
        7,
        {"id": "last", "code": "1/0"},
    ]
    text = "\n".join([*map(json.dumps, lines[:2]), "{broken", "", *map(json.dumps, lines[2:])])
    done = sandbox_cli("batch", "--slots", "2", stdin=text)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr
    assert [answer["id"] for answer in answers] == [
        "slow",
        "quick",
        None,
        "key",
        "cells",
        None,
        "no code",
        None,
        "last",
    ]
    assert [answer.get("status") for answer in answers] == ["ok", "ok", *[None] * 6, "error"]
    assert [answer["error"]["line"] for answer in answers[2:8]] == [3, 5, 6, 7, 8, 9]
    fields = [answer["error"]["field"] for answer in answers[2:8]]
    assert fields == [None, "limits.memory_gb", "cells", "id", "code", None]
    assert set(answers[1]) == {"id", "status", "stdout", "stderr", "exit_code", "wall_s", "queued_s", "error"}
    assert answers[8]["error"]["type"] == "ZeroDivisionError"


def test_batch_of_good_lines_succeeds() -> None:
    done = sandbox_cli("batch", stdin='{"id": "a", "code": "print(1)"}\n')
    assert (done.returncode, json.loads(done.stdout)["stdout"]) == (0, "1\n")


def test_batch_gives_a_numeric_id_back_as_a_number() -> None:
    done = sandbox_cli("batch", stdin='{"id": 7, "code": "print(1)"}\n')
    assert done.returncode == 0
    assert json.loads(done.stdout)["id"] == 7


def test_missing_interpreter_is_our_failure_not_the_programs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", "exec", "-"],
        input="print(1)",
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"STARLOOM_SANDBOX_PYTHON": "/nonexistent/python"},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "make setup" in done.stderr
