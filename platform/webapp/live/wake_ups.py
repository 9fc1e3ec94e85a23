"""Passes "look" messages of the channel layer on to the sockets of this process: one subscription a run, however many
watch it.

Sockets do not listen to the channel layer themselves, because a socket must open and go on while Valkey is away: then
it looks by its own clock, and the subscription here comes back by itself. Leaves out what is looked at: ``reads.py``.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from channels.layers import get_channel_layer
from redis.exceptions import RedisError

from webapp.live.announce import group_of

logger = logging.getLogger(__name__)

RETRY_S = (1.0, 2.0, 5.0, 15.0)


class Signal:
    """Set when there may be something new; remembers when."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.rung_at = 0.0

    def ring(self) -> None:
        self.rung_at = asyncio.get_running_loop().time()
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, at_most_s: float) -> None:
        """Until it rings, or for ``at_most_s``."""
        try:
            async with asyncio.timeout(at_most_s):
                await self._event.wait()
        except TimeoutError:
            pass


class WakeUps:
    """The subscriptions of one event loop."""

    def __init__(self) -> None:
        self._signals: dict[str, set[Signal]] = {}
        self._listeners: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def of(self, run_id: str) -> AsyncIterator[Signal]:
        """A signal that rings whenever something of the run is announced."""
        signal = Signal()
        self._signals.setdefault(run_id, set()).add(signal)
        if run_id not in self._listeners:
            self._listeners[run_id] = asyncio.create_task(self._listen(run_id))
        try:
            yield signal
        finally:
            self._signals[run_id].discard(signal)
            if not self._signals[run_id]:
                self._leave(run_id)

    def _leave(self, run_id: str) -> None:
        """Give up the subscription; nobody waits for a Valkey that may hang."""
        del self._signals[run_id]
        listener = self._listeners.pop(run_id)
        self._leaving.add(listener)
        listener.add_done_callback(self._leaving.discard)
        listener.cancel()

    async def _listen(self, run_id: str) -> None:
        failures = 0
        while True:
            try:
                await self._subscribed(run_id)
            except (RedisError, OSError) as error:
                if failures == 0:
                    logger.warning("no messages for run %s, pages look by themselves: %r", run_id, error)
                await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
                failures += 1

    async def _subscribed(self, run_id: str) -> None:
        layer = get_channel_layer()
        channel = await layer.new_channel()
        await layer.group_add(group_of(run_id), channel)
        try:
            while True:
                self._ring(run_id)  # the first time for what was announced before we listened
                await layer.receive(channel)
        finally:
            await layer.group_discard(group_of(run_id), channel)

    def _ring(self, run_id: str) -> None:
        for signal in self._signals.get(run_id, ()):
            signal.ring()


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, WakeUps] = WeakKeyDictionary()


def wake_ups() -> WakeUps:
    """Those of the running loop."""
    return _of_loop.setdefault(asyncio.get_running_loop(), WakeUps())
