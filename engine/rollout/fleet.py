"""The engines of a pool: which of them serve, with which weights, and their restarts.

* An engine that fails and then does not answer a question about itself either is lost: its turns end at once, it is
  restarted in the background and serves again only with the present weights.
* While rollouts are under way, every engine is asked for its load about once a second. So one that is dead or hangs
  is found within ``PROBE_S`` twice and a second, also when nobody waits for an answer of it.
* Which weights an engine has is what it reports, asked after every push. A broadcast may leave some without
  them: those that have the old ones get the new ones from a folder, those that are neither are restarted.
* The present weights' folder is asked for the moment an engine is lost, not when it is back: whoever writes
  it does so in the order of asking, and has other weights later.

Leaves out rollouts (``pool.py``) and how weights travel (``engine.weights``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any, Protocol

from engine.rollout.base import EngineCapacity, EngineUnavailable, RolloutEngine, Weights
from engine.rollout.member import Member, Service

START_TRIES = 2
"""Starts in a row that a dead engine gets: what fails twice is not mended by a third."""

PROBE_S = 10.0
"""Seconds an engine may take to say how it is. One that hangs is asked twice, which stays under 30."""

BEAT_S = 1.0
"""Seconds between two questions after an engine's load."""

GRACE_S = 10.0
"""Seconds beyond the start time-out after which a restart is given up."""

Send = Callable[[Sequence[RolloutEngine]], Awaitable[Collection[str]]]
"""Gives new weights to engines and returns the names of those that took them; of the others nothing is known."""

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Whoever places rollouts on the engines. Plain calls, from the fleet's event loop."""

    def opened(self, engine: str, capacity: EngineCapacity) -> None:
        """It serves from now on, and is empty."""

    def closed(self, engine: str) -> None:
        """It is lost."""

    def heard(self, engine: str, metrics: dict[str, float]) -> None:
        """What an engine that serves says of its load."""

    def settled(self) -> None:
        """A restart came to its end, well or not."""


class Fleet:
    """Owns engines from ``start`` to ``close``."""

    def __init__(self, engines: Sequence[RolloutEngine], listener: Listener, *, start_timeout_s: float) -> None:
        names = [engine.name for engine in engines]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a pool wants engines with names of their own, got {names}")
        self.restarts = 0
        self._listener = listener
        self._start_timeout_s = start_timeout_s
        self._members = {engine.name: Member(engine) for engine in engines}
        self._weights: Weights | None = None
        self._settled = asyncio.Event()
        self._watchers = 0
        self._watched = asyncio.Event()
        self._hearts: list[asyncio.Task[None]] = []

    @property
    def names(self) -> list[str]:
        return list(self._members)

    async def start(self) -> None:
        """Start all engines at the same time. Raises, and leaves none, if one does not come up."""
        starts = [asyncio.ensure_future(self._bring_up(member)) for member in self._members.values()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            await stop(starts)
            await self.close()
            raise
        self._hearts = [asyncio.create_task(self._heart(member)) for member in self._members.values()]

    async def close(self) -> None:
        """Stop restarting, and close every engine."""
        await stop([*self._hearts, *(member.care for member in self._members.values() if member.care)])
        for member in self._members.values():
            self._take_down(member, "the pool was closed")
        await asyncio.gather(*(member.engine.close() for member in self._members.values()))
        await asyncio.gather(*(member.exam for member in self._members.values() if member.exam))

    def service(self, engine: str) -> Service | None:
        """Its present service; None while it is down."""
        return self._members[engine].service

    @property
    def hopeless(self) -> str | None:
        """Why no engine serves or ever will again; None while there is hope."""
        members = self._members.values()
        if any(member.service or member.care for member in members):
            return None
        return f"no rollout engine is left: {'; '.join(member.fault for member in members)}"

    # --- weights ---

    async def serve(self, weights: Weights, send: Send | None = None) -> None:
        """See ``EnginePool.serve``."""
        self._weights = weights
        if send is not None:
            await self._send(weights, send)
        await asyncio.gather(*(self._push_or_lose(member) for member in self._serving()))
        if any(member.care for member in self._members.values()):
            await weights.folder()
        while not self._serving():
            if reason := self.hopeless:
                raise EngineUnavailable(reason)
            self._settled.clear()
            await self._settled.wait()

    async def _send(self, weights: Weights, send: Send) -> None:
        """Broadcast to the engines that live, then ask each what came of it."""
        await asyncio.gather(*(self._report(member) for member in self._serving()))
        members = self._serving()
        async with AsyncExitStack() as pushes:
            for member in members:
                await pushes.enter_async_context(member.push)
            took = await send([member.engine for member in members])
            reports = await asyncio.gather(*(self._report(member) for member in members))
        for member, report in zip(members, reports, strict=True):
            if member.name in took and report == weights.version:
                _has(member, weights.version)

    async def _report(self, member: Member) -> int | None:
        """What a live engine says that it serves. One that does not say, or is amid an update, is lost."""
        fault = f"engine {member.name} is amid an update of its weights"
        reported = None
        try:
            async with asyncio.timeout(PROBE_S):
                reported = await member.engine.weight_version()
        except (EngineUnavailable, TimeoutError) as error:
            fault = f"engine {member.name} does not say which weights it has: {str(error) or 'timed out'}"
        if reported is None:
            self._lose(member, fault)
        return reported

    async def _push(self, member: Member) -> None:
        """Bring one engine to the present weights, also when they change meanwhile."""
        async with member.push:
            while (weights := self._weights) is not None and member.version != weights.version:
                await member.engine.load_weights(await weights.folder(), weights.version)
                reported = await member.engine.weight_version()
                if reported != weights.version:
                    raise EngineUnavailable(f"{member.name} serves {reported} after loading {weights.version}")
                _has(member, weights.version)

    async def _push_or_lose(self, member: Member) -> None:
        try:
            await self._push(member)
        except EngineUnavailable as error:  # half-loaded weights: nothing but a restart makes it trustworthy
            self._lose(member, str(error))

    # --- life and loss ---

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, every engine is asked for its load again and again."""
        self._watchers += 1
        self._watched.set()
        try:
            yield
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._watched.clear()

    async def _heart(self, member: Member) -> None:
        while True:
            await self._watched.wait()
            if member.service:
                await self._beat(member)
            await asyncio.sleep(BEAT_S)

    async def _beat(self, member: Member) -> None:
        service = member.service
        try:
            async with asyncio.timeout(PROBE_S):
                metrics = await member.engine.metrics()
        except (EngineUnavailable, TimeoutError) as error:
            fault = f"engine {member.name} does not say how it is: {str(error) or 'timed out'}"
            await self.examine(member.name, fault)
        else:
            if service and member.service is service:
                self._listener.heard(member.name, metrics)

    async def examine(self, engine: str, fault: str) -> None:
        """Find out whether an engine that failed is lost. Many may ask at once: it is asked once."""
        member = self._members[engine]
        if member.exam is None:
            member.exam = asyncio.ensure_future(self._probe(member, fault))
        await asyncio.shield(member.exam)

    async def _probe(self, member: Member, fault: str) -> None:
        try:
            if member.service:
                async with asyncio.timeout(PROBE_S):
                    await member.engine.capacity()
        except (EngineUnavailable, TimeoutError):
            self._lose(member, fault)
        finally:
            member.exam = None

    async def metrics(self, patience_s: float = PROBE_S) -> dict[str, dict[str, float]]:
        """Load figures of the engines that serve; one that fails, or needs longer than ``patience_s``, is left out."""
        found: dict[str, dict[str, float]] = {}

        async def ask(member: Member) -> None:
            with suppress(EngineUnavailable, TimeoutError):  # its heartbeat notices too, and leads to its restart
                async with asyncio.timeout(patience_s):
                    found[member.name] = await member.engine.metrics()

        await asyncio.gather(*(ask(member) for member in self._serving()))
        return found

    def _serving(self) -> list[Member]:
        return [member for member in self._members.values() if member.service]

    async def _bring_up(self, member: Member) -> None:
        """Start an engine, give it the present weights, and let rollouts in."""
        await member.engine.start()
        capacity = await member.engine.capacity()
        member.version = None
        await self._push(member)
        member.service = Service(member.engine)
        self._settled.set()
        self._listener.opened(member.name, capacity)

    def _lose(self, member: Member, fault: str) -> None:
        """Take a dead engine out and have it restarted."""
        if not member.service:
            return
        _log.warning("engine %s is lost: %s", member.name, fault)
        self._take_down(member, fault)
        if self._weights is not None:
            self._weights.want_folder()
        member.care = asyncio.ensure_future(self._revive(member))

    def _take_down(self, member: Member, fault: str) -> None:
        service, member.service, member.fault = member.service, None, fault
        if service:
            service.end(fault)
            self._listener.closed(member.name)

    async def _revive(self, member: Member) -> None:
        """Restart a dead engine, or give it up within the start time-out and a little."""
        try:
            async with asyncio.timeout(self._start_timeout_s + GRACE_S):
                await self._restart(member)
        except Exception as error:  # whatever it is (an export that failed, too) is told to whoever needs the engine
            member.fault = f"engine {member.name} could not be restarted: {str(error) or 'timed out'}"
            _log.error("%s", member.fault)
            await member.engine.close()
        finally:
            member.care = None
            self._settled.set()
            self._listener.settled()

    async def _restart(self, member: Member) -> None:
        for tries_left in reversed(range(START_TRIES)):
            await member.engine.close()
            try:
                await self._bring_up(member)
            except EngineUnavailable as error:
                if not tries_left:
                    raise
                _log.warning("engine %s did not come up, once more: %s", member.name, error)
            else:
                self.restarts += 1
                return


def _has(member: Member, version: int) -> None:
    member.version = version
    if member.service:
        member.service.forget_prompts()


async def stop(tasks: Sequence["asyncio.Future[Any]"]) -> None:
    """Cancel and wait: what is left undone raises nothing here, it was raised to whoever awaited it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
