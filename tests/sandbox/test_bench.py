"""The benchmark's own arithmetic: percentiles, ratios, CPU of process trees, judged musts, answers counted by id."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sandbox.bench import backlog, closed_loop, cpu, musts, open_loop, programs, report, settings
from sandbox.bench.arms import Arm, WrongAnswer, subprocess_arms
from sandbox.bench.closed_loop import Turn
from sandbox.bench.spread import p50_p99_ms, percentile
from sandbox.bench.whole import measure
from sandbox.contract import ExecResult, ExecStatus, SandboxUnavailable
from tests.sandbox.support import PYTHON, ROOT

TINY = settings.Pace(
    rounds=1,
    turn_s=0.1,
    serial_s=0.1,
    sessions=4,
    cells=8,
    capacity_s=0.2,
    load_s=0.5,
    backlog_calls=0,
    programs=("print",),
)


@given(values=st.lists(st.floats(0, 1e6), min_size=1), share=st.floats(0.01, 1))
def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < share * len(values)


def test_times_are_told_in_milliseconds() -> None:
    assert p50_p99_ms([0.001, 0.002, 0.003]) == {"p50_ms": 2, "p99_ms": 3, "calls": 3}


def test_the_mix_keeps_its_shares_and_is_the_same_for_the_same_seed() -> None:
    drawn = Counter(programs.mixed(10_000, seed=1))
    assert {name: round(drawn[name] / 10_000, 1) for name in drawn} == programs.MIX
    assert programs.mixed(50, seed=1) == programs.mixed(50, seed=1) != programs.mixed(50, seed=2)


def test_ratios_are_taken_within_a_round_and_their_median_is_told() -> None:
    rounds = [
        {"ours": Turn([0.1], calls_per_s=rate, cpu_s=0.001), "theirs": Turn([0.2] * 2, calls_per_s=10, cpu_s=0.006)}
        for rate in (20, 50, 90)
    ]
    row = closed_loop.compared(rounds, "ours")
    assert (row["vs_theirs_wall"], row["vs_theirs_wall_spread"], row["calls_per_s"]) == (5, [2, 9], 50)
    assert row["vs_theirs_cpu"] == pytest.approx(3)
    assert row["baselines"]["theirs"]["calls"] == 6


async def test_a_turn_keeps_so_many_in_flight_and_asks_for_the_programs_in_order() -> None:
    running, most, asked = 0, 0, []

    async def call(program: str) -> None:
        nonlocal running, most
        asked.append(program)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    found = await closed_loop.turn(Arm("fake", "1", call), iter("abcdefgh" * 100), in_flight=3, seconds=0.1)
    assert most == 3
    assert "".join(asked) == ("abcdefgh" * 100)[: len(asked)]
    assert len(found.latencies_s) == len(asked)
    assert found.calls_per_s == pytest.approx(3 * len(asked) / sum(found.latencies_s), rel=0.2)


async def test_arms_swap_their_order_from_round_to_round() -> None:
    order = []

    def arm(name: str) -> Arm:
        async def call(_: str) -> None:
            order.append(name)

        return Arm(name, "1", call)

    rounds = closed_loop.rounds([arm("a"), arm("b")], "print", in_flight=1, seconds=0, count=2)
    names = [list(turns) async for turns in rounds]
    assert names == [["a", "b"], ["b", "a"]]


async def test_a_program_that_prints_something_else_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(programs.ANSWERS, "print", "3\n")
    with ThreadPoolExecutor(1) as threads, pytest.raises(WrongAnswer, match=r"print as a subprocess: exit 0, b'2\\n'"):
        await subprocess_arms(PYTHON, threads)[0].call("print")


def test_a_trees_cpu_counts_the_living_and_the_dead_once() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    run = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
    code = f"{run}print('reaped', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        parent.stdout.readline()
        assert 0.3 <= cpu.tree_cpu_s(parent.pid) < 0.9
        before = cpu.tree_cpu_s(os.getpid())
        parent.communicate(b"\n")
    assert cpu.tree_cpu_s(os.getpid()) == pytest.approx(before, abs=0.1)  # now it is among our own dead
    with pytest.raises(ProcessLookupError):
        cpu.tree_cpu_s(parent.pid)


async def test_a_call_waits_from_when_it_was_due() -> None:
    """One at a time, 50 ms each: the fourth of four that were due at once has waited for three others."""
    one_at_a_time = asyncio.Lock()

    async def call(_: str) -> None:
        async with one_at_a_time:
            await asyncio.sleep(0.05)

    times = await open_loop._submit_when_due(Arm("fake", "1", call), [0.0, 0.0, 0.0, 0.0])
    assert all(seconds >= 0.05 * place for place, seconds in enumerate(times, start=1))


def test_arrivals_come_at_the_rate_and_at_random() -> None:
    due = list(open_loop._arrivals(rate=100, seconds=100))
    gaps = [late - early for early, late in itertools.pairwise(due)]
    assert len(due) == pytest.approx(10_000, rel=0.05)
    assert sum(gap > 0.01 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.02)  # 1/e: exponential


def test_lost_doubled_and_wrong_answers_are_told_apart() -> None:
    tally = backlog._Tally(4, lambda _: None)
    right = [_answer(request.id, tally.right[request.id]) for request in tally.requests]
    tally.answered(right[0])
    tally.answered(right[1])
    tally.answered(right[1])
    tally.answered(_answer(right[2].id, "nonsense"))
    tally.failed(SandboxUnavailable("gave up"))
    assert (tally.lost, tally.doubled, tally.wrong, tally.failures) == (1, 1, 1, {"gave up": 1})


def _answer(id_: str, stdout: str) -> ExecResult:
    return ExecResult(
        id=id_, status=ExecStatus.OK, stdout=stdout, stderr="", exit_code=0, wall_s=0, queued_s=0, error=None
    )


def test_a_must_is_reached_at_its_bound_and_not_judged_unmeasured() -> None:
    least = musts.Must("speed", ("a", "b"), 5, "x", at_least=True)
    most = musts.Must("wait", ("c",), 4, "ms")
    assert [least.judge({"a": {"b": value}})["reached"] for value in (4.99, 5, 6)] == [False, True, True]
    assert [most.judge({"c": value})["reached"] for value in (3, 4, 4.01)] == [True, True, False]
    assert [least.judge(found)["reached"] for found in ({}, {"a": None}, {"a": {"b": None}})] == [None] * 3


@pytest.mark.e2e
async def test_a_whole_measurement_in_small() -> None:
    steps: list[str] = []
    found = await measure(PYTHON, TINY, say=steps.append)
    assert steps[0] == "starting the sandbox"
    assert found["print"]["vs_subprocess_wall"] > 0
    assert found["print"]["cpu_ms_per_call"] > 0
    assert found["session_later_cell"]["calls"] == TINY.cells
    assert found["open_loop"]["p50_ms"] > 0
    assert {row["name"] for row in found["musts"] if row["reached"] is None} >= {"queue: calls lost"}
    json.dumps(found)
    console = Console(width=200, record=True)
    report.show(found, console)
    assert "not measured" in console.export_text()


@pytest.mark.e2e
def test_a_url_that_is_none_is_refused_at_once() -> None:
    command = [sys.executable, "-m", "sandbox", "bench", "--at", "ftp://x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "ftp://x" in done.stderr
