"""How one part is kept, with small programs in the place of servers."""

import asyncio
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from webapp.machine import keeper as keeper_module
from webapp.machine.keeper import Keeper, PartFailed, trim
from webapp.machine.parts import Part
from webapp.machine.postgres import ServerFailed

READY_THEN_LIVE = """
import pathlib, sys, time
print("here I am", flush=True)
pathlib.Path(sys.argv[1]).write_text("up")
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(keeper_module, "LONGEST_PAUSE_S", 0.02)


class Heard(list[str]):
    def text(self) -> str:
        return "\n".join(self)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def part(tmp_path: Path, script: str, **fields: Any) -> Part:
    """A part whose program gets the path of a file; it answers while that file is there."""
    answer = tmp_path / "answer"

    def forget(say: Callable[[str], None]) -> None:
        answer.unlink(missing_ok=True)

    return Part(
        **{
            "name": "thing",
            "title": "the thing",
            "command": [sys.executable, "-c", textwrap.dedent(script), str(answer)],
            "environment": {"PATH": os.environ["PATH"]},
            "is_ready": answer.exists,
            "prepare": forget,
            "ready_within_s": 20,
            **fields,
        }
    )


@asynccontextmanager
async def kept(made: Part, tmp_path: Path, heard: Heard) -> AsyncIterator[Keeper]:
    keeper = Keeper(made, tmp_path / "thing.log", heard.append)
    keeper.start()
    try:
        yield keeper
    finally:
        await keeper.stop()
        assert children() == []


def children() -> list[psutil.Process]:
    """Those of this test that live; the session's servers are children of ours as well."""
    return [each for each in psutil.Process().children() if "answer" in " ".join(command_of(each))]


def command_of(process: psutil.Process) -> list[str]:
    """Empty for one that is dead and not reaped yet."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


async def until(look: Callable[[], Any]) -> Any:
    async with asyncio.timeout(20):
        while not (found := look()):  # noqa: ASYNC110 - other processes make it true
            await asyncio.sleep(0.01)
    return found


async def test_a_part_that_is_killed_is_started_again_and_that_is_said(tmp_path: Path, heard: Heard) -> None:
    async with kept(part(tmp_path, READY_THEN_LIVE), tmp_path, heard) as keeper:
        await keeper.until_ready()
        (first,) = children()
        first.kill()
        await until(lambda: "runs again" in heard.text())
        assert keeper.ready.is_set()
        assert children() != [first]
    assert heard == ["the thing: ended (killed by signal 9), starting it again", "the thing: runs again"]
    assert (tmp_path / "thing.log").read_text() == "here I am\n" * 2
    assert (tmp_path / "thing.log").stat().st_mode & 0o777 == 0o600


async def test_it_lives_in_a_session_of_its_own_and_hears_when_we_die(tmp_path: Path, heard: Heard) -> None:
    async with kept(part(tmp_path, READY_THEN_LIVE), tmp_path, heard) as keeper:
        await keeper.until_ready()
        (process,) = children()
        assert os.getsid(process.pid) == process.pid
        assert "tether" not in " ".join(process.cmdline())


async def test_one_that_never_comes_up_fails_with_its_last_words(tmp_path: Path, heard: Heard) -> None:
    made = part(tmp_path, "print('no such library'); raise SystemExit(7)")
    async with kept(made, tmp_path, heard) as keeper:
        with pytest.raises(PartFailed) as failed:
            await keeper.until_ready()
    assert "the thing does not come up (exit code 7)" in str(failed.value)
    assert "no such library" in str(failed.value)
    assert "keeps ending" not in heard.text(), "it is said once"


async def test_one_that_does_not_answer_in_time_fails(tmp_path: Path, heard: Heard) -> None:
    made = part(tmp_path, READY_THEN_LIVE, is_ready=lambda: False, ready_within_s=0.5)
    async with kept(made, tmp_path, heard) as keeper:
        with pytest.raises(PartFailed, match="it does not answer"):
            await keeper.until_ready()


async def test_what_cannot_be_prepared_fails_at_once_in_its_own_words(tmp_path: Path, heard: Heard) -> None:
    def refuse(say: Callable[[str], None]) -> None:
        raise ServerFailed("the disk is full")

    async with kept(part(tmp_path, READY_THEN_LIVE, prepare=refuse), tmp_path, heard) as keeper:
        with pytest.raises(PartFailed, match="the disk is full"):
            await keeper.until_ready()


async def test_a_probe_that_is_refused_ends_the_part(tmp_path: Path, heard: Heard) -> None:
    def refuse() -> bool:
        raise ServerFailed("the password is another one")

    async with kept(part(tmp_path, READY_THEN_LIVE, is_ready=refuse), tmp_path, heard) as keeper:
        with pytest.raises(PartFailed, match="the password is another one"):
            await keeper.until_ready()


async def test_a_loop_of_deaths_is_told_once_and_its_end_too(tmp_path: Path, heard: Heard) -> None:
    """It answers for the first life, dies shortly after its start while `broken` is there, then lives again."""
    broken = tmp_path / "broken"
    script = f"""
    import pathlib, sys
    if pathlib.Path({str(broken)!r}).exists(): sys.exit("I am broken")
    {READY_THEN_LIVE.strip().replace(chr(10), chr(10) + "    ")}
    """
    async with kept(part(tmp_path, script), tmp_path, heard) as keeper:
        await keeper.until_ready()
        broken.touch()
        children()[0].kill()
        log = tmp_path / "thing.log"
        await until(lambda: log.read_text().count("I am broken") >= 6)
        broken.unlink()
        await until(lambda: "runs again" in heard.text())
    assert [line.split(" (")[0] for line in heard] == [
        "the thing: ended",
        "the thing: ended",
        "the thing: keeps ending",
        "the thing: runs again",
    ]
    assert "I am broken" in heard[2]


async def test_one_that_does_not_heed_the_signal_is_killed(tmp_path: Path, heard: Heard) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY_THEN_LIVE
    async with kept(part(tmp_path, script, stop_within_s=0.2), tmp_path, heard) as keeper:
        await keeper.until_ready()
    assert heard == ["the thing: does not end, killing it"]


async def test_children_of_a_killed_part_go_with_it(tmp_path: Path, heard: Heard) -> None:
    """As the pool of a Celery worker (F045)."""
    script = """
    import os, pathlib, sys, time
    if os.fork() == 0: time.sleep(600)
    pathlib.Path(sys.argv[1]).write_text("up")
    time.sleep(600)
    """
    async with kept(part(tmp_path, script), tmp_path, heard) as keeper:
        await keeper.until_ready()
        (process,) = children()
        (grandchild,) = process.children()
        process.send_signal(signal.SIGKILL)
        await until(lambda: "runs again" in heard.text())
        assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


async def test_it_can_be_stopped_while_it_pauses(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "FIRST_PAUSE_S", 300)
    monkeypatch.setattr(keeper_module, "LONGEST_PAUSE_S", 300)
    async with kept(part(tmp_path, "pass"), tmp_path, heard):
        await until(lambda: heard)


def test_a_log_that_grows_too_long_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "LOG_BYTES", 10)
    log = tmp_path / "web.log"
    with log.open("a") as out:
        out.write("x" * 11)
        out.flush()
        assert trim(log) == 0
        out.write("next")
    assert log.read_text() == "next"
    assert (tmp_path / "web.log.1").read_text() == "x" * 11
    assert trim(log) == 4
    assert trim(tmp_path / "none.log") == 0
