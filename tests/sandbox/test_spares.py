"""Spare children: forked ahead of need, each used once, never in the way of a call."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandbox.backend.forkserver.berths import Berth
from sandbox.backend.forkserver.supervisor import ForkserverBackend
from sandbox.backend.protocol import CallLost
from sandbox.contract import ExecRequest, ExecStatus, Limits
from tests.sandbox.support import PYTHON, offspring, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio]


@asynccontextmanager
async def backend(**settings: int) -> AsyncIterator[ForkserverBackend]:
    running = ForkserverBackend(PYTHON, **{"slots": 2, **settings})
    await running.start()
    try:
        yield running
    finally:
        await running.close()


def children(running: ForkserverBackend) -> set[int]:
    """Processes that the light zygote has forked: spares, where no call runs."""
    return offspring(running.zygote_pids()["light"])


def call(code: str = "print(1)", **limits: float) -> ExecRequest:
    return ExecRequest(code=code, limits=Limits.model_validate(limits))


async def test_spares_wait_after_the_first_call_and_each_serves_once() -> None:
    async with backend(spares=3) as running:
        await running.run(call())
        await until(lambda: len(children(running)) == 3)
        before = children(running)
        await running.run(call())
        await until(lambda: len(children(running)) == 3)
        assert len(before - children(running)) == 1  # one was used, and is not there any more


async def test_no_two_spares_draw_the_same_random_numbers() -> None:
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    async with backend(spares=4) as running:
        drawn = [(await running.run(call(code))).stdout.split() for _ in range(5)]
    assert len({ours for ours, _ in drawn}) == len({numpys for _, numpys in drawn}) == 5


async def test_a_call_has_the_scratch_size_that_it_asks_for() -> None:
    fill = "f = open('x', 'wb')\nfor _ in range(2000): f.write(bytes(10000))"
    async with backend(spares=2) as running:
        for scratch_mb, status in [(32, ExecStatus.OK), (4, ExecStatus.ERROR), (4, ExecStatus.ERROR)] * 2:
            assert (await running.run(call(fill, scratch_mb=scratch_mb))).status is status


async def test_one_odd_size_leaves_the_spares_alone() -> None:
    async with backend(spares=2) as running:
        await running.run(call())
        await until(lambda: len(children(running)) == 2)
        before = children(running)
        await running.run(call(scratch_mb=8))
        await until(lambda: len(children(running)) == 2)
        assert children(running) == before


async def test_spares_that_died_are_passed_over() -> None:
    async with backend(spares=2) as running:
        await running.run(call())
        await until(lambda: len(children(running)) == 2)
        before = children(running)
        for spare in before:
            os.kill(spare, signal.SIGKILL)
        await until(lambda: not before & children(running))
        assert (await running.run(call())).stdout == "1\n"


async def test_calls_do_without_spares() -> None:
    async with backend(spares=0) as running:
        results = await asyncio.gather(*(running.run(call()) for _ in range(5)))
        assert {result.stdout for result in results} == {"1\n"}
        assert not children(running)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's programs get user ids of their own")
async def test_a_child_that_cannot_be_locked_down_is_our_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with backend(spares=0) as running:
        monkeypatch.setattr(Berth, "uid", property(lambda _: 70_000))  # outside of the zygote's range
        with pytest.raises(CallLost, match=r"lockdown failed: .*change the group id"):
            await running.run(call())
