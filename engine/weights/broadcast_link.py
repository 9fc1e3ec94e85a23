"""Weights through a process group: the learner sends each tensor once, every engine's workers receive it.

The group is made at the first push, and anew when the learner or an engine is another one (a restarted engine is).
A push: all engines let their running turns end, receive while the learner sends, then serve the new version; the pool
believes what each engine reports afterwards, nothing else.

When the group cannot be made or a push breaks off, that push goes through a file, and after ``TRIES`` of them in a row
every later one too. Engines that take weights from folders only get the file from the start, and so does an engine that
comes back between two pushes. Leaves out the file (``file_link.py``), the group (``process_group.py``) and which engine
has which weights (``engine.rollout.pool``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Coroutine, Sequence
from typing import Any, Protocol

from engine.learner.base import Learner, TransferGroup, WeightSpec
from engine.rollout.base import EngineUnavailable, RolloutEngine, WeightReceiver, Weights
from engine.rollout.fleet import Send
from engine.weights.base import LearnerThread, refuse_without_head
from engine.weights.file_link import FileLink
from engine.weights.ports import reserved_port

TRIES = 2
"""Pushes in a row that may fail before no more are tried: each costs the time-outs of all who wait for one another."""

LOOPBACK = "127.0.0.1"

_BROKEN = (EngineUnavailable, RuntimeError, OSError)
"""What engines raise, and what a learner's process group does (torch's errors are runtime errors)."""

_log = logging.getLogger(__name__)


class ServesWeights(Protocol):
    """What is given the weights: ``engine.rollout.pool.EnginePool``."""

    async def serve(self, weights: Weights, send: Send | None = None) -> None: ...


class BroadcastLink:
    """A ``WeightLink`` through a process group, with a file behind it. Owns ``files``."""

    def __init__(
        self,
        engines: ServesWeights,
        files: FileLink,
        *,
        learner_thread: LearnerThread,
        backend: str = "gloo",
        host: str = LOOPBACK,
    ) -> None:
        self._engines = engines
        self._files = files
        self._learner_thread = learner_thread
        self._backend = backend
        self._host = host
        self._learner: Learner | None = None
        self._group: TransferGroup | None = None
        self._failures = 0

    async def publish(self, learner: Learner, version: int) -> None:
        """As in ``WeightLink``. Also raises ``OSError`` when a file is needed and cannot be written."""

        async def send(engines: Sequence[RolloutEngine]) -> Collection[str]:
            return await _to_the_end(self._send(engines, learner, version))

        await self._engines.serve(Weights(version, lambda: self._files.write(learner, version)), send)
        await self._files.keep(version)

    async def close(self) -> None:
        await self._files.close()

    async def _send(self, engines: Sequence[RolloutEngine], learner: Learner, version: int) -> Collection[str]:
        """Names of the engines that have the weights now: all that can, or none that is known of."""
        receivers = [receiver for engine in engines if (receiver := engine.receiver())]
        if not receivers or self._failures >= TRIES:
            return ()
        specs = await self._learner_thread(learner.weight_specs)
        refuse_without_head((spec.name for spec in specs), "the learner sends")
        try:
            if not self._is_joined(learner, receivers):
                await self._join(learner, receivers)
            await self._transfer(learner, receivers, specs, version)
        except _BROKEN as error:
            self._fail(error, version)
            return ()
        self._failures = 0
        return [receiver.name for receiver in receivers]

    def _is_joined(self, learner: Learner, receivers: Sequence[WeightReceiver]) -> bool:
        return (
            self._group is not None
            and self._learner is learner
            and self._group.world == _world(receivers)
            and all(receiver.group == self._group for receiver in receivers)
        )

    async def _join(self, learner: Learner, receivers: Sequence[WeightReceiver]) -> None:
        """All at the same time: every member waits for the others."""
        self._group = None
        with reserved_port(self._host) as port:
            group = TransferGroup(self._host, port, _world(receivers), self._backend)
            joins: list[Awaitable[None]] = [self._learner_thread(lambda: learner.join_transfer(group))]
            first_rank = 1
            for receiver in receivers:
                joins.append(receiver.join(group, first_rank))
                first_rank += receiver.ranks
            await _all(joins)
        self._group, self._learner = group, learner

    async def _transfer(
        self, learner: Learner, receivers: Sequence[WeightReceiver], specs: Sequence[WeightSpec], version: int
    ) -> None:
        await _all([receiver.begin_update() for receiver in receivers])
        receiving = [asyncio.ensure_future(receiver.receive(specs)) for receiver in receivers]
        try:
            await self._learner_thread(learner.broadcast)
        except BaseException:  # they wait for what does not come; they are restarted anyway
            await _give_up(receiving)
            raise
        await _all(receiving)
        await _all([receiver.finish_update(version) for receiver in receivers])

    def _fail(self, error: Exception, version: int) -> None:
        self._group = None
        self._failures += 1
        later = " and all later ones go" if self._failures == TRIES else " goes"
        _log.warning("weights %d could not be broadcast, this push%s through a file: %s", version, later, error)


def _world(receivers: Sequence[WeightReceiver]) -> int:
    return 1 + sum(receiver.ranks for receiver in receivers)


async def _all(work: Sequence[Awaitable[None]]) -> None:
    """Wait for every one of them, then raise the first error: nobody is left behind in a collective."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _give_up(work: Sequence["asyncio.Future[None]"]) -> None:
    for each in work:
        each.cancel()
    await asyncio.gather(*work, return_exceptions=True)


async def _to_the_end(work: Coroutine[Any, Any, Collection[str]]) -> Collection[str]:
    """The result of ``work``. Cancelled, it ends first: half-way, learner and engines would wait for each other."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
