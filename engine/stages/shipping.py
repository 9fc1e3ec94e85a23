"""Shipping beside a run: the shipper's thread and the run's event loop, brought together.

Leaves out what is shipped and when: ``engine.sink.shipper``.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from engine.sink.event_log import EventLog
from engine.sink.shipper import Shipper
from engine.stages.commands import Inbox

_GRACE_S = 2.0
"""Seconds beyond the shipper's own limit, after which its thread is left behind."""


@asynccontextmanager
async def shipping(shipper: Shipper | None, log: EventLog, inbox: Inbox) -> AsyncIterator[None]:
    """Ship the log meanwhile, put the platform's commands into the inbox, and wait at the end for what is under way.

    A cancellation of that wait leaves at once: the run folder has everything.
    """
    if shipper is None:
        yield
        return
    ended = asyncio.Event()
    shipper.start(
        log, on_command=_in_loop(inbox.put), on_dismissed=_in_loop(inbox.supersede), on_end=_in_loop(ended.set)
    )
    try:
        yield
    finally:
        shipper.finish()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(shipper.pace.flush_s + _GRACE_S):
                    await ended.wait()
        finally:
            shipper.abandon()


def _in_loop(call: Callable[..., Any]) -> Callable[..., None]:
    """``call`` for the use of another thread: it happens in the running loop, soon."""
    loop = asyncio.get_running_loop()

    def hand_over(*arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
            loop.call_soon_threadsafe(call, *arguments)

    return hand_over
