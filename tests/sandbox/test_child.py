"""A child of a zygote, as its supervisor holds it, where there is no zygote that answers."""

import asyncio

import pytest

from sandbox.backend.forkserver import child
from sandbox.backend.forkserver.berths import Berth
from sandbox.backend.forkserver.child import Child
from tests.sandbox.support import until


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_DYING_S", 0.02)


def unborn(zygote_hangs: list[bool]) -> Child:
    return Child(Berth(0, None, ""), 1, zygote_hangs=lambda: zygote_hangs.append(True), on_release=lambda _: None)


async def test_a_kill_that_is_not_answered_means_that_the_zygote_hangs() -> None:
    complaints: list[bool] = []
    unborn(complaints).kill()
    await until(lambda: bool(complaints))


async def test_a_kill_that_is_answered_does_not() -> None:
    complaints: list[bool] = []
    answered = unborn(complaints)
    answered.kill()
    answered.exited(9, 0.0)
    await asyncio.sleep(0.05)
    assert not complaints
