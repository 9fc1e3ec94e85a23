"""What is told of a batch: of its engines while it samples, of its tool calls, of the sandbox behind them."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

import pytest

from engine.contract.events import NodeLoad
from engine.contract.trajectory import ToolCallRecord, Trajectory, Turn
from engine.stages.load import ERRORS_TOLD, EngineFigures, engine_timeline, load_of_calls, sandbox_load
from sandbox.contract import NodeStatus, SandboxStatus, SandboxUnavailable
from tests.engine.rollout.pools import in_no_time

Make = Callable[..., Trajectory]


class Telling:
    """A sandbox that says how it is, or fails to."""

    def __init__(self, status: SandboxStatus | Exception) -> None:
        self.told = status

    async def status(self) -> SandboxStatus:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


def calls(*records: ToolCallRecord) -> tuple[Turn, ...]:
    return (Turn(role="assistant", start=0, end=1, text="", calls=records),)


def record(status: str = "ok", name: str = "python", **fields: object) -> ToolCallRecord:
    return ToolCallRecord(name=name, status=status, response="", **fields)


def test_calls_are_counted_by_status_tool_and_exception(make: Make) -> None:
    found = load_of_calls(
        "rl",
        3,
        [
            make(turns=calls(record(), record("error", error_type="NameError"), record("parse_error", name=""))),
            make(turns=calls(record("timeout", "own"), record("error", "own", error_type="NameError"))),
        ],
    )
    assert (found.stage, found.step, found.calls) == ("rl", 3, 4), "what could not be parsed was no call"
    assert found.statuses == {"ok": 1, "error": 2, "timeout": 1}
    assert (found.tools, found.errors) == ({"python": 2, "own": 2}, {"NameError": 2})


def test_seconds_as_mean_and_p99(make: Make) -> None:
    records = [record(queued_s=place / 100, wall_s=1.0 if place else 51.0) for place in range(1, 100)]
    found = load_of_calls("rl", 1, [make(turns=calls(record(queued_s=0.0, wall_s=51.0), *records))])
    assert (found.queued_p99_s, found.wall_p99_s) == (0.98, 1.0)
    assert (found.queued_s, found.wall_s) == (pytest.approx(0.495), pytest.approx(1.5))


def test_without_a_call_there_is_no_percentile(make: Make) -> None:
    found = load_of_calls("rl", 1, [make(turns=calls())])
    assert (found.calls, found.queued_s, found.queued_p99_s, found.wall_p99_s) == (0, 0.0, None, None)


def test_only_the_most_frequent_exceptions_are_told(make: Make) -> None:
    many = [record("error", error_type=f"E{kind}") for kind in range(30) for _ in range(kind + 1)]
    errors = load_of_calls("rl", 1, [make(turns=calls(*many))]).errors
    assert errors == {f"E{kind}": kind + 1 for kind in range(10, 30)}
    assert len(errors) == ERRORS_TOLD


async def test_the_sandbox_is_told_beside_its_calls(make: Make) -> None:
    node = NodeStatus(
        name="n1", host="h", tier="full", isolation="", slots=4, busy=3, sessions=2, answered=9,
        uptime_s=1, load_1m=1, memory_mb=1,
    )  # fmt: skip
    status = SandboxStatus(nodes=(node,), queued_interactive=1, queued_training=2)
    found = await sandbox_load("rl", 1, [make()], Telling(status))
    assert found.nodes == (NodeLoad(name="n1", tier="full", slots=4, busy=3, sessions=2),)
    assert found.queued == 3


async def test_one_that_does_not_say_how_it_is_costs_no_step(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = await sandbox_load("rl", 1, [make()], Telling(SandboxUnavailable("gone")))
    assert (found.calls, found.nodes, found.queued) == (1, (), None)
    assert "does not say how it is: gone" in caplog.text


# --- the engines' timeline ---


def in_virtual_seconds(body: Callable[[], Awaitable[None]], every_s: float) -> list[float]:
    """When the figures are told, around ``body``."""

    async def main() -> list[float]:
        loop, told = asyncio.get_running_loop(), []

        async def load() -> EngineFigures:
            return {"e0": {"at": loop.time()}}

        async with engine_timeline(load, lambda figures: told.append(figures["e0"]["at"]), every_s=every_s):
            await body()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return told

    return in_no_time(main)


def test_engines_are_told_at_the_start_every_so_often_and_at_the_end() -> None:
    assert in_virtual_seconds(lambda: asyncio.sleep(25), 10) == [0, 10, 20, 25]
    assert in_virtual_seconds(lambda: asyncio.sleep(0), 10) == [0, 0]


def test_what_fails_inside_is_passed_on_and_leaves_no_timer() -> None:
    async def fail() -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        in_virtual_seconds(fail, 10)


def test_a_figure_that_cannot_be_written_stops_the_run() -> None:
    async def main() -> None:
        calls = itertools.count()

        async def load() -> EngineFigures:
            if next(calls):
                raise OSError("disk full")
            return {}

        async with engine_timeline(load, lambda figures: None, every_s=1):
            await asyncio.sleep(5)

    with pytest.raises(OSError, match="disk full"):
        in_no_time(main)
