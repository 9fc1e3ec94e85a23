"""Many rollouts over many engines that may die: one queue, places by the scheduler, no barrier between rollouts.

* A rollout that our own failure spoiled (its sandbox, an aborted generation, engines that failed it too often) begins
  again at the head of the queue; one spoiled more than ``retries`` times is left out with its reason, never scored.
* When an engine dies, the rollouts there keep the turns that they have (``place.py``); it is restarted (``fleet.py``).
* With every engine dead and not to be restarted, whoever waits gets ``EngineUnavailable``.

Leaves out what one rollout does (``agent.py``), who gets a place when (``scheduling``) and how weights travel
(``engine.weights``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from engine.contract.resources import GrowthScheduler
from engine.rollout.base import EngineCapacity, EngineUnavailable, RolloutEngine, Weights
from engine.rollout.fleet import Fleet, Send, stop
from engine.rollout.place import Desk, NoEngineLeft, Place
from engine.rollout.scheduling.base import EngineStats, Size
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.rollout.scheduling.scheduler import Scheduler
from sandbox.contract import SandboxUnavailable

TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

FIGURE_S = 2.0
"""Seconds that an engine may take to give its figures for the record; a step does not wait longer for them."""

_SPOILED = (EngineUnavailable, SandboxUnavailable)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failed:
    """A rollout left out: our failure, which says nothing about the model."""

    reason: str


@dataclass(slots=True)
class _Job(Generic[TaskT, ResultT]):
    """One rollout, from the queue to its result."""

    task: TaskT
    one: Callable[[TaskT, Place], Awaitable[ResultT]]
    size: Size
    retries: int
    result: asyncio.Future[ResultT | Failed]
    number: int = -1
    spoiled: int = 0
    place: Place | None = None
    attempt: asyncio.Task[None] | None = None
    over: bool = False
    """Whether the scheduler has heard the last of it."""

    def spoil(self) -> bool:
        """Count a failure of ours; whether it may be tried again."""
        self.spoiled += 1
        return self.spoiled <= self.retries

    @property
    def response_tokens(self) -> int:
        return self.place.response_tokens if self.place else self.size.response_tokens


class EnginePool:
    """Owns its engines from ``start`` to ``close``; used from one event loop."""

    def __init__(
        self,
        engines: Sequence[RolloutEngine],
        *,
        scheduler: Scheduler | None = None,
        retries: int = 2,
        start_timeout_s: float = 300.0,
    ) -> None:
        self.scheduler = scheduler or make_scheduler(GrowthScheduler(), max_running=256, lengths=LengthModel())
        self._retries = retries
        self._fleet = Fleet(engines, self, start_timeout_s=start_timeout_s)
        self._desk = Desk(self.scheduler, lambda: self._fleet.hopeless)

    @property
    def restarts(self) -> int:
        """Engines that were started again, ever."""
        return self._fleet.restarts

    async def start(self) -> None:
        """Start all engines at the same time. Raises, and leaves none, if one does not come up."""
        await self._fleet.start()

    async def close(self) -> None:
        """Stop restarting, close every engine, and tell whoever still waits."""
        await self._fleet.close()
        self._desk.give()

    async def run(
        self,
        tasks: Sequence[TaskT],
        one: Callable[[TaskT, Place], Awaitable[ResultT]],
        *,
        size: Callable[[TaskT], Size],
    ) -> list[ResultT | Failed]:
        """Results in the order of ``tasks``; ``size`` is what is known of a rollout before it runs.

        Raises ``EngineUnavailable`` when no engine is left, ``NeverFits`` when none could hold a rollout,
        and whatever ``one`` raises that is not our infrastructure's failure. Nothing runs on after it
        returns or raises.
        """
        loop = asyncio.get_running_loop()
        jobs = [_Job(task, one, size(task), self._retries, loop.create_future()) for task in tasks]
        try:
            with self._fleet.watched():
                for job in jobs:
                    self._submit(job)
                self._desk.give()
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
        await self._fleet.serve(weights, send)

    async def load(self) -> dict[str, dict[str, float]]:
        """Figures by engine: what it says of itself while it serves, and what the scheduler knows of it.

        ``queued`` is of the whole pool. ``reprefilled_tokens`` are prompt tokens that the engine computed although it,
        or another one, had done so before: after an eviction, a move or a death, and parts of cache blocks.
        """
        said = await self._fleet.metrics(FIGURE_S)
        return {engine: self._figures(engine, said.get(engine, {})) for engine in self._fleet.names}

    def _figures(self, engine: str, said: dict[str, float]) -> dict[str, float]:
        known = self.scheduler.figures(engine)
        figures = {
            **said,
            "serving": float(self._fleet.service(engine) is not None),
            "queued": float(self.scheduler.queued),
            "in_flight": float(known.in_flight),
            "in_tools": float(known.in_tools),
            "held_tokens": float(known.held_tokens),
            "expected_tokens": float(known.expected_tokens),
            "capacity_tokens": float(known.capacity_tokens),
            "moved": float(known.moved),
        }
        service = self._fleet.service(engine)
        if service and "prefix_queries" in said and "prefix_hits" in said:
            computed = said["prefix_queries"] - said["prefix_hits"]
            figures["reprefilled_tokens"] = max(0.0, computed - service.new_tokens)
        return figures

    # --- what the engines' fleet tells ---

    def opened(self, engine: str, capacity: EngineCapacity) -> None:
        self.scheduler.open(engine, capacity)
        self._desk.give()

    def closed(self, engine: str) -> None:
        self.scheduler.close(engine)

    def heard(self, engine: str, metrics: dict[str, float]) -> None:
        if metrics:  # a server that others run may tell nothing
            self.scheduler.observe(engine, stats_of(metrics))
            self._desk.give()

    def settled(self) -> None:
        self._desk.give()

    # --- one rollout ---

    def _submit(self, job: _Job[Any, Any]) -> None:
        job.number, placed = self._desk.submit(job.size)
        placed.add_done_callback(lambda placed: self._begin(job, placed))

    def _begin(self, job: _Job[Any, Any], placed: "asyncio.Future[str]") -> None:
        """A job has its place: attempt it there."""
        error = placed.exception()
        if job.over:
            return
        if error:
            self._end(job, error)
        elif not job.result.done():
            job.place = Place(job.number, job.size, placed.result(), self._desk, self._fleet, job.spoil)
            job.attempt = asyncio.create_task(self._attempt(job, job.place))
            job.attempt.add_done_callback(lambda attempt: _pass_on(job, attempt))

    async def _attempt(self, job: _Job[Any, Any], place: Place) -> None:
        """Run a job once, and settle it or have it begin again."""
        try:
            result = await job.one(job.task, place)
        except NoEngineLeft as error:
            self._end(job, error)
        except _SPOILED as error:
            self._begin_again(job, error)
        except Exception as error:  # a fault in the caller's code: passed on to whoever awaits the job
            self._end(job, error)
        else:
            self._end(job, result)
        self._desk.give()

    def _begin_again(self, job: _Job[Any, Any], error: Exception) -> None:
        """From its first turn on, or leave it out."""
        reason = f"{type(error).__name__}: {error}"
        if job.result.done():
            self._end(job, error)
        elif job.spoil():
            job.place = None
            placed = self._desk.put_back(job.number, job.size.response_tokens)
            placed.add_done_callback(lambda placed: self._begin(job, placed))
        else:
            _log.warning("a rollout is left out after %d failures of ours: %s", job.spoiled, reason)
            self._end(job, Failed(reason))

    def _end(self, job: _Job[Any, Any], outcome: object) -> None:
        """Give the place back, and tell who awaits the job."""
        job.over = True
        place = job.place
        if place is None or place.left or isinstance(outcome, BaseException | Failed):
            self._desk.withdraw(job.number, job.response_tokens)
        else:
            self._desk.finish(job.number, place.response_tokens, cut=place.cut)
        if job.result.done():
            return
        if isinstance(outcome, BaseException):
            job.result.set_exception(outcome)
        else:
            job.result.set_result(outcome)

    async def _withdraw(self, jobs: Sequence[_Job[Any, Any]]) -> None:
        """Leave nothing of these jobs behind, however far they are."""
        for job in jobs:
            job.result.cancel()
        await stop([job.attempt for job in jobs if job.attempt])
        for job in jobs:
            if job.number >= 0 and not job.over:
                self._end(job, asyncio.CancelledError())
        self._desk.give()


def _pass_on(job: _Job[Any, Any], attempt: "asyncio.Task[None]") -> None:
    """A fault of the pool's own keeps nobody waiting."""
    if not attempt.cancelled() and (error := attempt.exception()) and not job.result.done():
        job.result.set_exception(error)


def stats_of(metrics: dict[str, float]) -> EngineStats:
    """An engine's own figures in the scheduler's words; what it does not say is 0."""
    return EngineStats(
        running=int(metrics.get("running", 0)),
        waiting=int(metrics.get("waiting", 0)),
        kv_usage=metrics.get("kv_usage", 0.0),
        preemptions=int(metrics.get("preemptions", 0)),
        generated_tokens=int(metrics.get("generated_tokens", 0)),
    )
