"""Many rollouts over many engines: one queue, places by the admission policy, engines that may die.

* One first-in-first-out queue for all engines, refilled the moment a place is free; no barrier between
  rollouts.
* A rollout stays on the engine that it was given, so that its later turns find their prefix in that
  engine's cache.
* A rollout that our own failure spoiled (engine, sandbox, aborted generation) goes back to the head of the
  queue; one spoiled more than ``retries`` times is left out with its reason, never scored.
* An engine that fails and then does not answer a question about itself either is dead: its rollouts are
  taken away at once, it is restarted in the background and serves again only with the present weights.
* Which weights an engine has is what it reports, asked after every push. A broadcast may leave some without
  them: those that have the old ones get the new ones from a folder, those that are neither are restarted.
* The present weights' folder is asked for the moment an engine is lost, not when it is back: whoever writes
  it does so in the order of asking, and has other weights later.
* With every engine dead and not to be restarted, whoever waits gets ``EngineUnavailable``.

Leaves out what one rollout does (``agent.py``), how many fit (``scheduler.py``) and how weights travel
(``engine.weights``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from engine.rollout.base import EngineUnavailable, RolloutEngine, Weights
from engine.rollout.scheduler import AdmissionPolicy, KvCap, Reservation
from sandbox.contract import SandboxUnavailable

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

START_TRIES = 2
"""Starts in a row that a dead engine gets: what fails twice is not mended by a third."""

PROBE_S = 10.0
"""Seconds a suspected engine may take to answer. With ``GRACE_S`` and closing it stays under 30."""

GRACE_S = 10.0
"""Seconds beyond the start time-out after which a restart is given up."""

Send = Callable[[Sequence[RolloutEngine]], Awaitable[Collection[str]]]
"""Gives new weights to engines and returns the names of those that took them; of the others nothing is known."""

_SPOILED = (EngineUnavailable, SandboxUnavailable)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failed:
    """A rollout left out: our failure, which says nothing about the model."""

    reason: str


@dataclass(slots=True)
class _Job(Generic[TaskT, ResultT]):
    """One task in the queue or on an engine."""

    task: TaskT
    one: Callable[[TaskT, RolloutEngine], Awaitable[ResultT]]
    max_tokens: int
    result: asyncio.Future[ResultT | Failed]
    spoiled: int = 0
    attempt: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Member:
    """One engine and what the pool knows of it. ``serving`` is off while it is dead or starting."""

    engine: RolloutEngine
    max_model_tokens: int = 0
    version: int | None = None
    serving: bool = False
    fault: str = ""
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    care: asyncio.Task[None] | None = None
    push: asyncio.Lock = field(default_factory=asyncio.Lock)


class EnginePool:
    """Owns its engines from ``start`` to ``close``; used from one event loop."""

    def __init__(
        self,
        engines: Sequence[RolloutEngine],
        *,
        admission: AdmissionPolicy | None = None,
        max_running: int = 256,
        retries: int = 2,
        start_timeout_s: float = 300.0,
    ) -> None:
        names = [engine.name for engine in engines]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a pool wants engines with names of their own, got {names}")
        self.restarts = 0
        self._admission = admission or KvCap(max_running)
        self._retries = retries
        self._start_timeout_s = start_timeout_s
        self._members = {engine.name: _Member(engine) for engine in engines}
        self._queue: deque[_Job[Any, Any]] = deque()
        self._weights: Weights | None = None
        self._settled = asyncio.Event()

    async def start(self) -> None:
        """Start all engines at the same time. Raises, and leaves none, if one does not come up."""
        starts = [asyncio.ensure_future(self._bring_up(member)) for member in self._members.values()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            await _stop(starts)
            await self.close()
            raise

    async def run(
        self,
        tasks: Sequence[TaskT],
        one: Callable[[TaskT, RolloutEngine], Awaitable[ResultT]],
        *,
        max_tokens: int | None = None,
    ) -> list[ResultT | Failed]:
        """Results in the order of ``tasks``; ``max_tokens`` is the longest that prompt and response get.

        Raises ``EngineUnavailable`` when no engine is left, ``NeverFits`` when none could hold a rollout,
        and whatever ``one`` raises that is not our infrastructure's failure. Nothing runs on after it
        returns or raises.
        """
        length = max_tokens or self.max_model_tokens
        loop = asyncio.get_running_loop()
        jobs = [_Job(task, one, length, loop.create_future()) for task in tasks]
        self._queue.extend(jobs)
        self._dispatch()
        try:
            results: list[ResultT | Failed] = await asyncio.gather(*(job.result for job in jobs))
            return results
        finally:
            await self._withdraw(jobs)

    async def load_weights(self, folder: Path, version: int) -> None:
        """Let every engine serve the weights of ``folder``, which must stay until the next weights.

        As ``serve``; engines that serve ``version`` already are left alone.
        """

        async def there() -> Path:
            return folder

        await self.serve(Weights(version, there))

    async def serve(self, weights: Weights, send: Send | None = None) -> None:
        """Let every engine serve ``weights``, by ``send`` or from a folder; one that is down gets them before it does.

        Raises ``EngineUnavailable`` when no engine is left, and what the writing of the folder raises.
        """
        self._weights = weights
        if send is not None:
            await self._send(weights, send)
        await asyncio.gather(*(self._push_or_lose(member) for member in self._serving()))
        if any(member.care for member in self._members.values()):
            await weights.folder()
        while not self._serving():
            self._raise_if_all_lost()
            self._settled.clear()
            await self._settled.wait()

    def _serving(self) -> list[_Member]:
        return [member for member in self._members.values() if member.serving]

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
            if member.engine.name in took and report == weights.version:
                member.version = weights.version

    async def _report(self, member: _Member) -> int | None:
        """The version that an engine reports; one that has none is lost."""
        if not member.serving:
            return None
        try:
            version = await member.engine.weight_version()
        except EngineUnavailable as error:
            self._lose(member, str(error))
            return None
        if version is None:
            self._lose(member, "an update of its weights broke off")
        return version

    async def metrics(self) -> dict[str, dict[str, float]]:
        """Load figures of every engine that serves, by name; one that fails to answer is left out."""
        found: dict[str, dict[str, float]] = {}
        for name, member in self._members.items():
            if member.serving:
                with suppress(EngineUnavailable):  # its rollouts notice too, and lead to its restart
                    found[name] = await member.engine.metrics()
        return found

    async def close(self) -> None:
        """Stop restarting, close every engine, and tell whoever still waits."""
        await _stop([member.care for member in self._members.values() if member.care])
        for member in self._members.values():
            self._take_down(member, "the pool was closed")
        await asyncio.gather(*(member.engine.close() for member in self._members.values()))
        self._fail_queue("the pool was closed")

    @property
    def max_model_tokens(self) -> int:
        """Longest prompt and response together that every engine can hold."""
        return min((m.max_model_tokens for m in self._members.values() if m.max_model_tokens), default=1)

    def _dispatch(self) -> None:
        """Give places to the head of the queue while there are any."""
        if self._all_lost():
            self._fail_queue(self._faults())
        while self._queue:
            try:
                place = self._admission.reserve(self._queue[0].max_tokens)
            except Exception as error:  # the policy refuses this job for good; its caller is told
                _set_exception(self._queue.popleft(), error)
                continue
            if place is None:
                return
            job = self._queue.popleft()
            job.attempt = asyncio.ensure_future(self._attempt(job, place))

    async def _attempt(self, job: _Job[Any, Any], place: Reservation) -> None:
        """Run a job once on the engine of its place, and settle or requeue it."""
        try:
            await self._try(job, self._members[place.engine])
        except Exception as error:  # a fault in the caller's code: passed on to whoever awaits the job
            _set_exception(job, error)
        finally:
            self._admission.release(place)
            self._dispatch()

    async def _try(self, job: _Job[Any, Any], member: _Member) -> None:
        try:
            result = await _unless(member.lost, job.one(job.task, member.engine), lambda: member.fault)
        except _SPOILED as error:
            await self._examine(member, error)
            self._spoil(job, error)
        else:
            if not job.result.done():
                job.result.set_result(result)

    def _spoil(self, job: _Job[Any, Any], error: Exception) -> None:
        job.spoiled += 1
        reason = f"{type(error).__name__}: {error}"
        if job.result.done():
            return
        if job.spoiled > self._retries:
            _log.warning("a rollout is left out after %d attempts: %s", job.spoiled, reason)
            job.result.set_result(Failed(reason))
        else:
            self._queue.appendleft(job)

    async def _withdraw(self, jobs: Sequence[_Job[Any, Any]]) -> None:
        for job in jobs:
            job.result.cancel()
        self._queue = deque(job for job in self._queue if not job.result.done())
        await _stop([job.attempt for job in jobs if job.attempt])

    def _fail_queue(self, reason: str) -> None:
        while self._queue:
            _set_exception(self._queue.popleft(), EngineUnavailable(reason))

    async def _bring_up(self, member: _Member) -> None:
        """Start an engine, give it the present weights, and let rollouts in."""
        await member.engine.start()
        capacity = await member.engine.capacity()
        member.max_model_tokens = capacity.max_model_tokens
        member.version = None
        await self._push(member)
        member.fault, member.serving, member.lost = "", True, asyncio.Event()
        self._admission.open(member.engine.name, capacity)
        self._settled.set()
        self._dispatch()

    async def _push(self, member: _Member) -> None:
        """Bring one engine to the present weights, also when they change meanwhile."""
        async with member.push:
            while (weights := self._weights) is not None and member.version != weights.version:
                await member.engine.load_weights(await weights.folder(), weights.version)
                reported = await member.engine.weight_version()
                if reported != weights.version:
                    raise EngineUnavailable(f"{member.engine.name} serves {reported} after loading {weights.version}")
                member.version = weights.version

    async def _push_or_lose(self, member: _Member) -> None:
        try:
            await self._push(member)
        except EngineUnavailable as error:  # half-loaded weights: nothing but a restart makes it trustworthy
            self._lose(member, str(error))

    async def _examine(self, member: _Member, error: Exception) -> None:
        """Find out whether the engine that spoiled a rollout is dead."""
        if not isinstance(error, EngineUnavailable) or not member.serving:
            return
        try:
            await asyncio.wait_for(member.engine.capacity(), PROBE_S)
        except (EngineUnavailable, TimeoutError):
            self._lose(member, str(error))

    def _lose(self, member: _Member, fault: str) -> None:
        """Take a dead engine out and have it restarted."""
        if not member.serving:
            return
        _log.warning("engine %s is lost: %s", member.engine.name, fault)
        self._take_down(member, fault)
        if self._weights is not None:
            self._weights.want_folder()
        member.care = asyncio.ensure_future(self._revive(member))

    def _take_down(self, member: _Member, fault: str) -> None:
        if member.serving:
            self._admission.close(member.engine.name)
        member.serving, member.fault = False, fault
        member.lost.set()

    async def _revive(self, member: _Member) -> None:
        """Restart a dead engine, or give it up within the start time-out and a little."""
        try:
            async with asyncio.timeout(self._start_timeout_s + GRACE_S):
                await self._restart(member)
        except Exception as error:  # whatever it is (an export that failed, too) is told to whoever needs the engine
            member.fault = f"engine {member.engine.name} could not be restarted: {str(error) or 'timed out'}"
            _log.error("%s", member.fault)
            await member.engine.close()
        finally:
            member.care = None
            self._settled.set()
            self._dispatch()

    async def _restart(self, member: _Member) -> None:
        for tries_left in reversed(range(START_TRIES)):
            await member.engine.close()
            try:
                await self._bring_up(member)
            except EngineUnavailable as error:
                if not tries_left:
                    raise
                _log.warning("engine %s did not come up, once more: %s", member.engine.name, error)
            else:
                self.restarts += 1
                return

    def _all_lost(self) -> bool:
        return not any(member.serving or member.care for member in self._members.values())

    def _faults(self) -> str:
        faults = [member.fault or "not started" for member in self._members.values()]
        return f"no rollout engine is left: {'; '.join(faults)}"

    def _raise_if_all_lost(self) -> None:
        if self._all_lost():
            raise EngineUnavailable(self._faults())


async def _unless(lost: asyncio.Event, work: Awaitable[ResultT], fault: Callable[[], str]) -> ResultT:
    """The result of ``work``, or ``EngineUnavailable`` once the engine is lost. Leaves nothing running."""
    working = asyncio.ensure_future(work)
    losing = asyncio.ensure_future(lost.wait())
    try:
        await asyncio.wait((working, losing), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise EngineUnavailable(fault())
        return await working
    finally:
        await _stop([working, losing])


async def _stop(tasks: Sequence["asyncio.Future[Any]"]) -> None:
    """Cancel and wait: what is left undone raises nothing here, it was raised to whoever awaited it."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _set_exception(job: _Job[Any, Any], error: Exception) -> None:
    if not job.result.done():
        job.result.set_exception(error)
