"""A rollout's place in the pool: which engine its next turn goes to, and what becomes of a turn whose engine dies.

The turns before it are kept: the rollout gives its place back, gets another one at the head of the queue, and only the
turn that was lost is sampled again there, from the same ids. Leaves out who gets a place when
(``engine.rollout.scheduling``) and the rollouts themselves (``pool.py``).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from engine.rollout.base import EngineUnavailable, FinishReason, GenerateRequest, Generation
from engine.rollout.fleet import Fleet
from engine.rollout.member import Service
from engine.rollout.scheduling.base import Placement, Size
from engine.rollout.scheduling.scheduler import Scheduler

AT_ONCE = 64
"""Places handed out in one turn of the event loop: a batch's first thousands do not hold everybody else up."""

_log = logging.getLogger(__name__)


class NoEngineLeft(EngineUnavailable):
    """Every engine is lost for good: trying again would not help."""


class Desk:
    """The scheduler, and who waits for a place: each has a future that becomes the name of an engine.

    A future raises ``NeverFits`` when no engine could hold the rollout, ``NoEngineLeft`` when there is none. Whoever
    submits also finishes or withdraws, whatever comes. Who stops waiting may do all of it too.
    """

    def __init__(self, scheduler: Scheduler, hopeless: Callable[[], str | None]) -> None:
        self.scheduler = scheduler
        self._hopeless = hopeless
        self._waiting: dict[int, asyncio.Future[str]] = {}
        self._given: deque[Placement] = deque()
        self._refused: set[int] = set()

    def submit(self, size: Size) -> "tuple[int, asyncio.Future[str]]":
        """A number for a new rollout, and its place. Not given out before ``give``."""
        number = self.scheduler.submit(size)
        return number, self._wait(number)

    def put_back(self, number: int, response_tokens: int) -> "asyncio.Future[str]":
        """Another place, for one that has a place which is worth nothing any more. Not given out before ``give``."""
        if number not in self._waiting:
            self.scheduler.put_back(number, response_tokens)
        return self._wait(number)

    def finish(self, number: int, response_tokens: int, *, cut: bool) -> None:
        """It ended by its own rules, so long; ``cut`` if it would have gone on."""
        if number in self._waiting:
            self.withdraw(number, response_tokens)
        else:
            self.scheduler.finish(number, response_tokens, cut=cut)

    def withdraw(self, number: int, response_tokens: int) -> None:
        """It ended otherwise, waiting or not; it would have come to more than so long."""
        self._waiting.pop(number, None)
        if number in self._refused:
            self._refused.remove(number)  # the scheduler has forgotten it already
        else:
            self.scheduler.withdraw(number, response_tokens)

    def give(self) -> None:
        """Give out every place that is free now."""
        if reason := self._hopeless():
            self._refuse_all(reason)
            return
        admitted = self.scheduler.admit()
        if admitted.placed:
            handing = bool(self._given)
            self._given.extend(admitted.placed)
            if not handing:
                self._hand_out()
        for number, error in admitted.refused:
            self._refused.add(number)
            _fail(self._waiting.pop(number), error)

    def _hand_out(self) -> None:
        for _ in range(min(AT_ONCE, len(self._given))):
            placement = self._given.popleft()
            waiting = self._waiting.pop(placement.number, None)
            if waiting and not waiting.done():  # else it has been withdrawn or cancelled meanwhile
                waiting.set_result(placement.engine)
        if self._given:
            asyncio.get_running_loop().call_soon(self._hand_out)

    def _wait(self, number: int) -> "asyncio.Future[str]":
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        return waiting

    def _refuse_all(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            _fail(each, NoEngineLeft(reason))


class Place:
    """What a rollout has of the pool, for as long as one attempt at it lasts."""

    def __init__(self, number: int, size: Size, engine: str, desk: Desk, fleet: Fleet, spoil: Callable[[], bool]):
        self.cut = False
        """Whether its last generation ended for its length."""
        self.left = False
        self._number = number
        self._size = size
        self._desk = desk
        self._fleet = fleet
        self._spoil = spoil
        self._service: Service | None = fleet.service(engine)
        self._context_tokens = 0
        self._counted_tokens = 0

    @property
    def response_tokens(self) -> int:
        """Length of the response as it stands."""
        return max(self._size.response_tokens, self._context_tokens - self._size.prompt_tokens)

    def leave(self) -> None:
        """Say that the rollout, when it returns, has not ended by its own rules: it was stopped, may go on later."""
        self.left = True

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn on the engine that is this rollout's now; on another one if that one dies.

        Raises ``EngineUnavailable`` when engines failed this rollout more often than the pool retries, and
        ``NoEngineLeft`` at once when none is left.
        """
        while True:
            try:
                return await self._turn(request, await self._held())
            except NoEngineLeft:
                raise
            except EngineUnavailable as error:
                if not await self._survives(error):
                    raise

    async def _held(self) -> Service:
        """An engine that serves: of the place that it has, or of another one when that engine is lost."""
        while self._service is None or self._service.fault is not None:
            waiting = self._desk.put_back(self._number, self.response_tokens)
            self._desk.give()
            self._service = self._fleet.service(await waiting)
        return self._service

    async def _turn(self, request: GenerateRequest, service: Service) -> Generation:
        engine = self._desk.scheduler.turn_started(self._number, len(request.prompt_ids))
        if engine != service.engine.name:
            service = self._moved(engine)
        service.count_new(request, self._counted_tokens)
        self._counted_tokens = len(request.prompt_ids)
        made = await service.generate(request)
        self._context_tokens = self._counted_tokens = len(request.prompt_ids) + len(made.ids)
        self.cut = made.finish is FinishReason.length
        self._desk.scheduler.turn_ended(self._number, self._context_tokens)
        return made

    def _moved(self, engine: str) -> Service:
        self._service = self._fleet.service(engine)
        if self._service is None:
            raise EngineUnavailable(f"engine {engine} is down")
        return self._service

    async def _survives(self, error: EngineUnavailable) -> bool:
        """After a turn was lost: whether it is to be sampled again, anywhere."""
        if self._service:
            await self._fleet.examine(self._service.engine.name, str(error))
        self._service = None
        again = self._spoil()
        _log.debug("a turn is lost, %s: %s", "to be sampled again" if again else "and its rollout with it", error)
        return again


def _fail(waiting: "asyncio.Future[str]", error: Exception) -> None:
    if not waiting.done():
        waiting.set_exception(error)
