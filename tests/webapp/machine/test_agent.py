"""The agent with real processes that stand for engines: small scripts in place of ``python -m engine resume``."""

import asyncio
import json
import os
import shutil
import signal
import stat
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from webapp.config.paths import Var
from webapp.machine.agent import Agent
from webapp.machine.engines import Record, Records, carriers, engine_environment

LIVES = "import time; time.sleep(600)"
TOKEN = "slr_secret-of-the-run"
WAIT_S = 20

End = tuple[str, int, str]


class Platform:
    """Notes what the agent tells; ``away`` makes it fail as a database that is gone does."""

    def __init__(self) -> None:
        self.told: list[End] = []
        self.away = False

    def gone(self, run_id: str, number: int, how: str) -> None:
        if self.away:
            raise ConnectionError("no database")
        self.told.append((run_id, number, how))


@pytest.fixture
def var(tmp_path: Path) -> Var:
    return Var(tmp_path / "var")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


@pytest.fixture
def platform() -> Platform:
    return Platform()


@pytest.fixture(autouse=True)
def _nothing_stays(var: Var) -> Any:
    """Even when a test fails."""
    yield
    for record in Records(var.agent).read() if var.agent.exists() else ():
        for process in carriers(record):
            process.kill()
    shutil.rmtree(var.sockets, ignore_errors=True)


@asynccontextmanager
async def agent(var: Var, platform: Platform, script: str = LIVES) -> AsyncIterator[Agent]:
    """An agent whose engines run ``script``; its end is that of an agent that is stopped or killed."""
    stop = asyncio.Event()
    made = Agent(var, platform.gone, [sys.executable, "-c", textwrap.dedent(script)], grace_s=0.5)
    serving = asyncio.create_task(made.serve(stop))
    await until(lambda: made.socket.exists() or serving.done())
    try:
        yield made
    finally:
        stop.set()
        await serving


async def ask(agent: Agent, order: Any) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(str(agent.socket))
    writer.write((order if isinstance(order, bytes) else json.dumps(order).encode()) + b"\n")
    answer: dict[str, Any] = json.loads(await reader.readline())
    writer.close()
    return answer


def start(folder: Path, number: int = 1) -> dict[str, Any]:
    environment = {"STARLOOM_RUN_TOKEN": TOKEN, "STARLOOM_PLATFORM_URL": "http://127.0.0.1:1"}
    return {"do": "start", "run_id": "run_a", "number": number, "folder": str(folder), "environment": environment}


async def until(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(WAIT_S):
        while not (found := look()):  # noqa: ASYNC110 - other processes make it true
            await asyncio.sleep(0.02)
    return found


async def living(agent: Agent) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await ask(agent, {"do": "list"}))["engines"]
    return found


async def the_engine(agent: Agent) -> psutil.Process:
    (engine,) = await living(agent)
    return psutil.Process(engine["pid"])


async def test_an_engine_runs_in_its_own_session_with_a_clean_environment(
    var: Var, platform: Platform, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://u:secret@h/d")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "webapp.config.settings")
    async with agent(var, platform) as served:
        assert (await ask(served, start(folder)))["ok"]
        engine = await the_engine(served)
        environment = engine.environ()
        assert os.getsid(engine.pid) == engine.pid
        assert environment["STARLOOM_RUN_TOKEN"] == TOKEN
        assert environment["STARLOOM_SANDBOX"] == f"unix:{var.sockets}/sandbox.sock"
        assert environment["PATH"].startswith(str(Path(sys.prefix) / "bin") + os.pathsep)
        assert not environment.keys() & {"DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PYTEST_CURRENT_TEST"}
        assert TOKEN not in " ".join(engine.cmdline())
        assert str(folder) == engine.cmdline()[-1]
        assert TOKEN not in "".join(file.read_text() for file in var.agent.iterdir())
        assert stat.S_IMODE(served.socket.stat().st_mode) == 0o600
        assert stat.S_IMODE(var.agent.stat().st_mode) == 0o700


def test_an_engine_is_told_of_a_sandbox_elsewhere_with_its_token(var: Var, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARLOOM_SANDBOX", "https://sandbox.example:8443")
    monkeypatch.setenv("STARLOOM_SANDBOX_TOKEN", "a-token")
    environment = engine_environment(var)
    assert environment["STARLOOM_SANDBOX"] == "https://sandbox.example:8443"
    assert environment["STARLOOM_SANDBOX_TOKEN"] == "a-token"


async def test_the_same_launch_is_started_once(var: Var, platform: Platform, folder: Path) -> None:
    async with agent(var, platform) as served:
        answers = await asyncio.gather(*(ask(served, start(folder)) for _ in range(5)))
        assert [answer["started"] for answer in answers].count(True) == 1
        assert len(await living(served)) == 1


async def test_a_launch_that_ended_is_not_started_by_a_late_order(var: Var, platform: Platform, folder: Path) -> None:
    async with agent(var, platform, "pass") as served:
        await ask(served, start(folder))
        await until(lambda: platform.told)
        await until_gone(served)
        assert (await ask(served, start(folder)))["started"] is False
    async with agent(var, platform, "pass") as another:
        assert (await ask(another, start(folder)))["started"] is False
    assert len(platform.told) == 1


async def until_gone(served: Agent) -> None:
    async with asyncio.timeout(WAIT_S):
        while await living(served):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("pass", "exit code 0"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import no_such_module", "exit code 1; last lines of engine-1.log:\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by signal 11"),
    ],
)
async def test_an_end_is_told_in_words(script: str, how: str, var: Var, platform: Platform, folder: Path) -> None:
    async with agent(var, platform, script) as served:
        await ask(served, start(folder))
        ((run_id, number, told),) = await until(lambda: platform.told)
    assert (run_id, number) == ("run_a", 1)
    assert told.startswith(how)
    assert ("No module named 'no_such_module'" in told) == ("no_such_module" in script)


async def test_last_words_are_short_and_harmless(var: Var, platform: Platform, folder: Path) -> None:
    script = r"""
    import sys
    sys.stdout.buffer.write(b"x" * 5000 + b"\n\x00\x1b[31mred\x1b[0m \x9b2J \xff\r\n")
    sys.exit(1)
    """
    async with agent(var, platform, script) as served:
        await ask(served, start(folder))
        ((_, _, told),) = await until(lambda: platform.told)
    assert told.endswith(r"\x00red 2J " + "�") or told.endswith("\\x00red �2J �")
    assert len(told.encode()) < 2100
    assert all(character.isprintable() or character == "\n" for character in told)


async def test_a_platform_that_is_away_is_told_later(var: Var, platform: Platform, folder: Path) -> None:
    platform.away = True
    async with agent(var, platform, "pass") as served:
        await ask(served, start(folder))
        assert (await ask(served, {"do": "alive", "run_id": "run_a", "number": 1}))["alive"]
        await until(lambda: (folder / "logs" / "engine-1.log").exists())
        platform.away = False
        await until(lambda: platform.told)


async def test_an_agent_that_died_before_telling_leaves_it_to_the_next(
    var: Var, platform: Platform, folder: Path
) -> None:
    platform.away = True
    async with agent(var, platform, "raise SystemExit(1)") as served:
        await ask(served, start(folder))
        engine = await the_engine(served)
        await until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
    platform.away = False
    async with agent(var, platform):
        ((_, _, told),) = await until(lambda: platform.told)
    assert "its exit code is unknown" in told


async def test_the_next_agent_takes_up_what_runs(var: Var, platform: Platform, folder: Path) -> None:
    async with agent(var, platform) as served:
        await ask(served, start(folder))
        engine = await the_engine(served)
    async with agent(var, platform) as another:
        assert await the_engine(another) == engine
        assert (await ask(another, start(folder)))["started"] is False
        engine.kill()
        await until(lambda: platform.told)


async def test_another_process_with_the_same_id_is_no_engine(var: Var, platform: Platform, folder: Path) -> None:
    var.agent.mkdir(parents=True)
    Records(var.agent).write(
        Record("run_a", 1, str(folder), pid=os.getpid(), started=1, boot=Record("", 0, "").of_process(1).boot)
    )
    async with agent(var, platform) as served:
        await until(lambda: platform.told)
        assert (await ask(served, {"do": "alive", "run_id": "run_a", "number": 1}))["alive"] is False


async def test_an_agent_that_died_in_the_middle_of_a_start_starts_nothing_twice(
    var: Var, platform: Platform, folder: Path
) -> None:
    """The record is written before the process and completed after it."""
    async with agent(var, platform) as served:
        await ask(served, start(folder))
        engine = await the_engine(served)
    Records(var.agent).write(Record("run_a", 1, str(folder)))
    Records(var.agent).write(Record("run_b", 1, str(folder)))
    async with agent(var, platform) as another:
        assert await the_engine(another) == engine
        assert (await ask(another, {"do": "alive", "run_id": "run_b", "number": 1}))["known"] is False
    assert platform.told == []


# F049: a killed job leaves none of its processes.
FAMILY = """
import os, subprocess, sys, time
for place in range(8):
    clean = {} if place % 4 == 3 else None
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    subprocess.Popen(command, start_new_session=place % 2 == 0, env=clean)
open(sys.argv[1] + "/started", "w").close()
time.sleep(600)
"""


async def test_kill_takes_the_whole_family_along(var: Var, platform: Platform, folder: Path) -> None:
    async with agent(var, platform, FAMILY) as served:
        await ask(served, start(folder))
        await until((folder / "started").exists)
        engine = await the_engine(served)
        family = [engine, *engine.children(recursive=True)]
        assert len(family) == 9
        assert (await ask(served, {"do": "kill", "run_id": "run_a", "number": 1}))["killed"]
        assert await until(lambda: platform.told) == [("run_a", 1, "killed by signal 9")]
        await until(lambda: not any(alive(process) for process in family))
        assert (await ask(served, {"do": "kill", "run_id": "run_a", "number": 1}))["killed"] is False


async def test_what_a_dead_engine_left_behind_goes_before_its_end_is_told(
    var: Var, platform: Platform, folder: Path
) -> None:
    async with agent(var, platform, FAMILY) as served:
        await ask(served, start(folder))
        await until((folder / "started").exists)
        engine = await the_engine(served)
        marked = [child for child in engine.children() if "STARLOOM_ENGINE" in child.environ()]
        assert len(marked) == 6
        unmarked = [child for child in engine.children() if child not in marked]
        engine.send_signal(signal.SIGKILL)
        await until(lambda: platform.told)
        assert not any(alive(child) for child in marked)
        for child in unmarked:
            child.kill()


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_the_next_launch_waits_for_an_engine_that_is_tidying_up(
    var: Var, platform: Platform, folder: Path
) -> None:
    script = """
    import pathlib, sys, time
    folder = pathlib.Path(sys.argv[1])
    with open(folder / "order", "a") as out: out.write("begin ")
    while not (folder / "go").exists(): time.sleep(0.02)
    with open(folder / "order", "a") as out: out.write("end ")
    """
    async with agent(var, platform, script) as served:
        await ask(served, start(folder, 1))
        await until(lambda: (folder / "order").exists() and (folder / "order").read_text())
        assert (await ask(served, start(folder, 2)))["started"]
        assert (await ask(served, {"do": "alive", "run_id": "run_a", "number": 2}))["alive"]
        assert len(await living(served)) == 2
        (folder / "go").touch()
        await until(lambda: len(platform.told) == 2)
    assert (folder / "order").read_text() == "begin end begin end "
    assert [number for _, number, _ in platform.told] == [1, 2]


async def test_a_launch_that_is_killed_while_it_waits_is_never_started(
    var: Var, platform: Platform, folder: Path
) -> None:
    async with agent(var, platform) as served:
        await ask(served, start(folder, 1))
        await ask(served, start(folder, 2))
        for number in (2, 1):
            await ask(served, {"do": "kill", "run_id": "run_a", "number": number})
        await until(lambda: len(platform.told) == 2)
    assert platform.told == [
        ("run_a", 1, "killed by signal 9"),
        ("run_a", 2, "it was killed before it was started"),
    ]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (b"nonsense", "JSONDecodeError"),
        ([], "expected a JSON object"),
        ({"do": "dance"}, "start, list, alive, kill"),
        ({"do": "alive", "number": 1}, "KeyError: 'run_id'"),
        ({"do": "alive", "run_id": "../../etc", "number": 1}, "run_id: expected letters"),
    ],
)
async def test_a_wrong_order_is_answered(order: Any, said: str, var: Var, platform: Platform) -> None:
    async with agent(var, platform) as served:
        answer = await ask(served, order)
    assert answer["ok"] is False
    assert said in answer["error"]


async def test_a_folder_that_is_not_there_is_said_at_once_and_can_be_tried_again(
    var: Var, platform: Platform, folder: Path, tmp_path: Path
) -> None:
    async with agent(var, platform) as served:
        answer = await ask(served, start(tmp_path / "nowhere"))
        assert answer["ok"] is False
        assert "nowhere" in answer["error"]
        assert (await ask(served, start(folder)))["started"]
