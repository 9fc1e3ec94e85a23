"""A whole platform in other processes, as `python manage.py up` starts it: for browser, API and kill tests.

One for the session, in a throw-away var/; its admin is made on the setup page, as a person does. Leaves out what is
tested with it.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from engine.contract.events import EvalFinished, Event, LogLine, StepFinished, fold_steps
from engine.sink.event_log import read_events
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories
from webapp.config.paths import Var
from webapp.config.servers import DATABASE, POSTGRES_USER

ROOT = Path(__file__).resolve().parents[1]
PASSWORD = "correct horse battery"
START_S, STOP_S = 120, 90

SCRIPTED_MODEL = """
name = "scripted"
[model]
kind = "tiny-qwen3"
hidden_size = 32
layers = 1
heads = 2
ffn_size = 64
vocab_size = 512
[rollout]
kind = "scripted"
"""

SCRIPTED_RECIPE = f"""{SCRIPTED_MODEL}
[[stages]]
name = "sft"
kind = "sft"
steps = 6
examples = 40
batch_size = 4
checkpoint_every = 2
[[stages]]
name = "rl"
kind = "rl"
steps = RL_STEPS
problems_per_step = 4
rollouts_per_problem = 8
keep_per_problem = 4
max_response_tokens = 300
max_logprob_gap = 1e9
[[stages]]
name = "eval"
kind = "eval"
max_response_tokens = 160
count = 4
"""

# What the command line of each part holds.
PARTS = {
    "web": "uvicorn",
    "worker": "-A webapp.config worker",
    "postgres": "postgres -D",
    "valkey": "valkey-server",
    "agent": "manage.py agent",
    "sandbox": "sandbox node",
}


@dataclass
class Stack:
    """The processes, and the ways in that people have."""

    var: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None
    url: str = ""
    token: str = ""
    api: httpx.Client = field(default_factory=httpx.Client)

    def start(self, *options: str) -> None:
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", *options],
                cwd=ROOT,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.url = self.until(self._address, START_S, "`manage.py up` never told its address")
        self.until(self._answers, START_S, "the web server never answered")

    def environment(self) -> dict[str, str]:
        unwanted = ("DATABASE_URL", "VALKEY_URL", "STARLOOM_SANDBOX", "STARLOOM_VAR", "STARLOOM_PORT")
        clean = {name: value for name, value in os.environ.items() if name not in unwanted}
        return {**clean, "STARLOOM_VAR": str(self.var)}

    def _address(self) -> str | None:
        assert self.process is not None
        text = self.output()
        assert self.process.poll() is None, text
        found = re.findall(r"http://127\.0\.0\.1:\d+", text)
        return found[-1] if found else None

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz").status_code == 200
        except httpx.HTTPError:
            return False

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def first_login(self) -> None:
        """The admin by the setup page's form, then a token by the command."""
        with httpx.Client(base_url=self.url, follow_redirects=True) as browser:
            page = browser.get("/")
            assert page.url.path == "/setup", page.text
            form = {
                "csrfmiddlewaretoken": browser.cookies["starloom_csrf"],
                "username": "admin",
                "password1": PASSWORD,
                "password2": PASSWORD,
            }
            made = browser.post("/setup", data=form, headers={"Referer": self.url})
            assert made.status_code == 200, made.text
        self.token = self.manage("create_token", "admin").strip().splitlines()[-1]
        self.api = httpx.Client(
            base_url=f"{self.url}/api/v1", headers={"Authorization": f"Bearer {self.token}"}, timeout=30
        )

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def stop(self) -> None:
        """As `make stop` does; every process has to be gone."""
        if self.process is None:
            return
        family = psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(STOP_S)
        _, alive = psutil.wait_procs(family, timeout=10)
        self.process = None
        assert not alive, alive

    def abandon(self) -> None:
        """Kill whatever of the stack is left, however it came about."""
        family = []
        if self.process is not None and self.process.poll() is None:
            family = psutil.Process(self.process.pid).children(recursive=True)
            self.process.kill()
        for process in [*family, *psutil.process_iter(["environ"])]:
            if process in family or str(self.var) in " ".join((process.info["environ"] or {}).values()):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        shutil.rmtree(Var(self.var).sockets, ignore_errors=True)

    def processes(self, part: str) -> list[psutil.Process]:
        """Processes of a part of this stack, oldest first."""
        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        found = [each for each in family if each.is_running() and PARTS[part] in " ".join(_command(each))]
        return sorted(found, key=psutil.Process.create_time)

    def engines(self) -> list[psutil.Process]:
        """The controllers of runs, whoever started them."""
        everyone = psutil.process_iter(["cmdline"])
        return [p for p in everyone if "-m engine resume " + str(self.var) in " ".join(p.info["cmdline"] or ())]

    def kill(self, part: str) -> None:
        """SIGKILL to a part's first process, as the kernel's OOM killer does it."""
        first = self.until(lambda: self.processes(part), 60, f"{part} never ran")[0]
        first.kill()
        psutil.wait_procs([first], timeout=10)

    def database(self) -> "psycopg.Connection[Any]":
        """A connection of our own, past the platform."""
        var = Var(self.var)
        return psycopg.connect(
            host=str(var.sockets),
            user=POSTGRES_USER,
            dbname=DATABASE,
            password=var.secret("postgres_password"),
            autocommit=True,
        )

    @staticmethod
    def until(look: Callable[[], Any], seconds: float, otherwise: str) -> Any:
        """Wait for a condition that other processes make true."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := look():
                return found
            time.sleep(0.1)
        raise AssertionError(otherwise)

    def run(self, run_id: str) -> dict[str, Any]:
        answer = self.api.get(f"/runs/{run_id}")
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def start_scripted(self, *, name: str, steps: int, problems: list[dict[str, str]] | None = None) -> str:
        """A run of the scripted engine with so many RL steps, on an uploaded dataset; its id."""
        rows = problems or [{"problem": f"What is {a}*{a + 3}?", "answer": str(a * (a + 3))} for a in range(11, 41)]
        body = "\n".join(json.dumps(row) for row in rows)
        lines = {"Content-Type": "application/x-ndjson"}
        dataset = self.api.post("/datasets", params={"name": "scripted"}, content=body, headers=lines)
        assert dataset.status_code in (200, 201), dataset.text
        recipe = SCRIPTED_RECIPE.replace("RL_STEPS", str(steps))
        run = self.api.post("/runs", json={"toml": recipe, "name": name, "datasets": {"rl": dataset.json()["id"]}})
        assert run.status_code == 201, run.text
        return str(run.json()["id"])

    def until_state(self, run_id: str, *states: str, seconds: float = 300) -> dict[str, Any]:
        """Wait until the run is in one of the states; errors of a server that is just down are waited out."""

        def look() -> dict[str, Any] | None:
            try:
                run = self.run(run_id)
            except (httpx.HTTPError, ValueError):
                return None
            return run if run["state"] in states else None

        found: dict[str, Any] = self.until(look, seconds, f"{run_id} never became {' or '.join(states)}")
        return found


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(scope="session")
def platform_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    stack = Stack(var=folder / "var", log=folder / "up.log")
    try:
        stack.start()
        stack.first_login()
        yield stack
        stack.stop()
    finally:
        stack.abandon()


def assert_agreement(stack: Stack, run_id: str, steps: dict[str, int]) -> None:
    """Every step (stage -> how many) and every trajectory of the run folder is in Postgres once; REST says the same."""
    with stack.database() as database:
        folder = Path(database.execute("SELECT folder FROM runs_run WHERE id = %s", [run_id]).fetchone()[0])
        events = list(read_events(RunFolder.open(folder)))
        assert_points(database, run_id, events, steps)
        assert_trajectories(database, run_id, events, folder)
        lines = database.execute("SELECT attempt, seq FROM telemetry_logline WHERE run_id = %s", [run_id]).fetchall()
    assert Counter(lines) == Counter((e.attempt, e.seq) for e in events if isinstance(e.body, LogLine))
    assert_series(stack, run_id, events)


def metric(events: list[Event], key: str) -> dict[tuple[str, int], float | None]:
    """(stage, step) -> value, as the run folder tells it; the later attempt stands."""
    return {step: body.metrics[key] for step, body in fold_steps(events).items() if key in body.metrics}


def assert_points(database: Any, run_id: str, events: list[Event], steps: dict[str, int]) -> None:
    for key in {name for body in fold_steps(events).values() for name in body.metrics}:
        rows = database.execute(
            "SELECT stage, step, value FROM telemetry_metricpoint p JOIN runs_stagerun s"
            " ON s.run_id = p.run_id AND s.name = p.stage AND s.kind <> 'eval'"
            " WHERE p.run_id = %s AND key = %s AND NOT superseded",
            [run_id, key],
        ).fetchall()
        assert len(rows) == len({row[:2] for row in rows}), f"{key}: a step is there twice"
        assert {(stage, step): value for stage, step, value in rows} == metric(events, key)
    expected = {(stage, step) for stage, count in steps.items() for step in range(1, count + 1)}
    assert expected <= set(fold_steps(events))


def assert_trajectories(database: Any, run_id: str, events: list[Event], folder: Path) -> None:
    rows = database.execute(
        "SELECT file, row, reward, tool_calls FROM trajectories_trajectory WHERE run_id = %s", [run_id]
    ).fetchall()
    told = [event.body for event in events if isinstance(event.body, StepFinished | EvalFinished)]
    files = {body.trajectories for body in told if body.trajectories}
    stored = {
        (file, row): (t.reward, len(t.calls))
        for file in files
        for row, t in enumerate(read_trajectories(folder / file))
    }
    assert {(file, row): (reward, calls) for file, row, reward, calls in rows} == stored


def assert_series(stack: Stack, run_id: str, events: list[Event]) -> None:
    series = stack.api.get(f"/runs/{run_id}/series", params={"keys": "reward"}).json()["series"]["reward"]
    offsets = {stage["name"]: stage["offset"] for stage in stack.run(run_id)["stages"]}
    expected = {offsets[stage] + step: value for (stage, step), value in metric(events, "reward").items()}
    assert dict(zip(series["x"], series["last"], strict=True)) == expected
