"""`manage.py up` with everything that it starts, a real engine among it: started, killed, taken up, stopped.

The scripted rollout engine, so that a run is long in steps and short in seconds. What kills do to a run's rows is
tested in ``tests/e2e``.
"""

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.stack import ROOT, Stack
from webapp.config.paths import Var

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

MAKE_RUN = """
from tests.webapp.support import RECIPE, make_project, make_run
print(make_run(make_project(), toml=RECIPE.replace("steps = 10", "steps = 5000"), name="endless").pk)
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One that was started on a port that somebody else has."""
    folder = tmp_path_factory.mktemp("up")
    made = Stack(var=folder / "var", log=folder / "up.log")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made.taken = taken.getsockname()[1]  # type: ignore[attr-defined]
        try:
            made.start("--port", str(taken.getsockname()[1]))
            yield made
            made.stop()
        finally:
            abandon(made)


def test_a_taken_port_gives_the_next_free_one_and_that_is_said(stack: Stack) -> None:
    port = int(stack.url.rpartition(":")[2])
    taken = stack.taken  # type: ignore[attr-defined]
    assert port > taken
    assert f"port {taken} is taken, using {port}" in stack.output()
    for part in ("web", "worker", "agent"):
        assert main_process(stack, part).environ()["STARLOOM_PORT"] == str(port)
    url = stack.manage("shell", "-v", "0", "-c", "from django.conf import settings; print(settings.PLATFORM_URL)")
    assert url.strip() == stack.url, "also for who is no child of `up`"


def test_it_listens_on_the_loopback_only(stack: Stack) -> None:
    port = int(stack.url.rpartition(":")[2])
    family = [psutil.Process(stack.process.pid), *psutil.Process(stack.process.pid).children(recursive=True)]
    listening = {c.laddr for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening == {("127.0.0.1", port)}


def test_nobody_else_can_read_what_is_ours(stack: Stack) -> None:
    var = Var(stack.var)
    for folder in (var.path, var.sockets, var.postgres, var.valkey, var.agent, var.logs):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder
    for name in ("secret_key", "postgres_password", "valkey_password"):
        assert stat.S_IMODE((var.path / name).stat().st_mode) == 0o600
    for file in (file for file in var.sockets.iterdir() if file.is_socket()):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file


def test_no_secret_is_on_a_command_line(stack: Stack) -> None:
    secrets = [Var(stack.var).secret(name) for name in ("secret_key", "postgres_password", "valkey_password")]
    family = psutil.Process(stack.process.pid).children(recursive=True)
    said = "\0".join(" ".join(process.cmdline()) for process in family)
    assert len(family) >= 7
    assert not [secret for secret in secrets if secret in said]


def test_servers_and_sandbox_see_none_of_the_platforms_variables(stack: Stack) -> None:
    for part in ("postgres", "valkey", "sandbox"):
        names = set(main_process(stack, part).environ())
        assert not {name for name in names if name.startswith(("DJANGO", "STARLOOM"))} - {"STARLOOM_PART"}


def test_a_second_one_on_the_same_var_is_refused(stack: Stack) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "up"],
        cwd=ROOT,
        env=stack.environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert f"already runs on {stack.var}, process {stack.process.pid}" in done.stderr
    assert httpx.get(f"{stack.url}/healthz").status_code == 200


# F045, F055: what dies is started again and works.
def test_every_part_that_is_killed_is_started_again_and_answers(stack: Stack) -> None:
    titles = {
        "web": "web server",
        "worker": "Celery worker",
        "postgres": "Postgres",
        "valkey": "Valkey",
        "agent": "agent",
        "sandbox": "sandbox node",
    }
    before = {part: main_process(stack, part) for part in titles}
    done_before = tasks_done(stack)
    for process in before.values():
        process.kill()
    for title in titles.values():
        stack.until(lambda title=title: f"{title}: runs again" in stack.output(), 60, f"{title} never ran again")
    assert {part: main_process(stack, part).pid != before[part].pid for part in titles} == dict.fromkeys(titles, True)
    failing = "from webapp.machine.checks import checks; print([c for c in checks() if not c.ok])"
    stack.until(lambda: stack.manage("shell", "-v", "0", "-c", failing).strip() == "[]", 30, "a check fails")
    stack.until(lambda: tasks_done(stack) > done_before + 1, 60, "beat and worker do not work together any more")


def tasks_done(stack: Stack) -> int:
    return len(re.findall(r"look_after_runs\[\S+ succeeded", (stack.var / "logs/worker.log").read_text()))


# F057: what happens to a run when everything around it ends.
@pytest.mark.long
def test_a_run_outlives_its_platform_and_is_stopped_with_a_checkpoint(tmp_path: Path) -> None:
    stack = Stack(var=tmp_path / "var", log=tmp_path / "up.log")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]  # far from those that others try first
    try:
        stack.start("--port", str(port))
        run_id = stack.manage("shell", "-v", "0", "-c", MAKE_RUN).strip()
        until_state(stack, run_id, "running")
        (engine,) = stack.engines()
        assert "STARLOOM_RUN_TOKEN" in engine.environ()
        assert engine.environ()["STARLOOM_RUN_TOKEN"] not in " ".join(engine.cmdline())

        sandbox = main_process(stack, "sandbox")
        needed = {each for kept in (engine, sandbox) for each in (kept, *kept.children(recursive=True))}
        abandoned = set(the_family(stack)) - needed
        os.kill(stack.process.pid, signal.SIGKILL)
        stack.process.wait()
        psutil.wait_procs(abandoned, timeout=30)
        assert not [process for process in abandoned if process.is_running()], "its parts die with it"
        assert engine.is_running()
        assert sandbox.is_running(), "engines need it"
        steps = steps_in(stack, run_id)
        stack.until(lambda: steps_in(stack, run_id) > steps + 2, 60, "the engine does not train on")

        url, stack.log = stack.url, tmp_path / "second.log"
        stack.start()
        assert stack.url == url, "engines know the platform by its port"
        stack.until(lambda: "ready" in stack.output(), 60, "it is never ready")
        assert "1 run going on" in stack.output()
        assert not sandbox.is_running(), "it was replaced by one that is looked after"
        assert [each.pid for each in stack.engines()] == [engine.pid], "there is no second one"
        seen = steps_in_database(stack, run_id)
        stack.until(lambda: steps_in_database(stack, run_id) > seen, 60, "its events do not arrive")

        family = [*the_family(stack), engine]
        down = stack.manage("down")
        assert stack.process.wait(10) == 0
        psutil.wait_procs(family, timeout=10)
        assert not [process for process in family if process.is_running()]
        assert "1 run asked for a checkpoint: endless" in stack.output()
        assert "all runs are at rest" in stack.output()
        assert down.splitlines()[-1] == "stopped"
        assert list((stack.var / "runs" / run_id).glob("attempts/0001/checkpoints/*/*"))
        assert "does not run" in stack.manage("down")

        stack.log = tmp_path / "third.log"
        stack.start("--keep-runs")
        stack.until(lambda: "ready" in stack.output(), 60, "it is never ready")
        assert "1 run stopped by the last shutdown: endless" in stack.output()
        assert run_id in stack.manage("resume_runs")
        until_state(stack, run_id, "running")
        assert "no run was stopped" in stack.manage("resume_runs")
        (engine,), sandbox = stack.engines(), main_process(stack, "sandbox")
        stack.process.send_signal(signal.SIGTERM)
        assert stack.process.wait(30) == 0
        assert "1 run going on" in stack.output()
        assert engine.is_running()
        assert sandbox.is_running()
        assert "left behind" in stack.manage("down")
        assert not sandbox.is_running()
        assert engine.is_running()
    finally:
        abandon(stack)


def abandon(stack: Stack) -> None:
    stack.abandon()
    shutil.rmtree(Var(stack.var).sockets, ignore_errors=True)


def main_process(stack: Stack, part: str) -> psutil.Process:
    """The part's own process: the oldest that carries its mark."""
    found = []
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("STARLOOM_PART") == f"{stack.var}:{part}":
            found.append(process)
    return min(found, key=lambda process: process.create_time())


def the_family(stack: Stack) -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(stack.process.pid).children(recursive=True)
    return found


def until_state(stack: Stack, run_id: str, state: str) -> None:
    def reached() -> bool:
        found, reason = row(stack, "SELECT state, state_reason FROM runs_run WHERE id = %s", run_id)
        assert found != "failed", reason
        return bool(found == state)

    stack.until(reached, 90, f"the run never was {state}")


def steps_in_database(stack: Stack, run_id: str) -> int:
    (found,) = row(stack, "SELECT x FROM runs_run WHERE id = %s", run_id)
    return int(str(found))


def row(stack: Stack, query: str, run_id: str) -> tuple[object, ...]:
    with stack.database() as database:
        found = database.execute(query, [run_id]).fetchone()
    assert found is not None
    return tuple(found)


def steps_in(stack: Stack, run_id: str) -> int:
    """As the run folder tells."""
    events = stack.var / "runs" / run_id / "attempts/0001/events.jsonl"
    return events.read_text().count('"step.finished"')
