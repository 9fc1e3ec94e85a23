"""What a run says of its rollout engines before anyone needs them."""

import asyncio
import logging

import pytest

from engine.rollout.base import EngineUnavailable
from engine.stages.rollouts import _tell_failed_start


async def test_engines_that_do_not_start_are_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def start() -> None:
        raise EngineUnavailable("libnuma is missing")

    starting = asyncio.create_task(start())
    starting.add_done_callback(_tell_failed_start)
    with caplog.at_level(logging.ERROR):
        await asyncio.wait([starting])
        await asyncio.sleep(0)  # callbacks run in the loop's next turn
    assert "did not start" in caplog.text
    assert "libnuma is missing" in caplog.text


async def test_a_start_that_was_cancelled_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    starting = asyncio.create_task(asyncio.Event().wait())
    starting.add_done_callback(_tell_failed_start)
    starting.cancel()
    await asyncio.wait([starting])
    await asyncio.sleep(0)
    assert not caplog.records
