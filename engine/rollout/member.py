"""One engine of a pool, and its service: what it does from a start until it is lost.

Turns under way end the moment the engine is lost, whether or not it still answers them. Leaves out deciding that it is
lost and starting it again (``fleet.py``).
"""

import asyncio
from dataclasses import dataclass, field

from engine.rollout.base import EngineUnavailable, GenerateRequest, Generation, RolloutEngine


class Service:
    """An engine from one start to its loss. Everything here begins anew with the next start."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.engine = engine
        self.fault: str | None = None
        """Why it is lost; None while it serves."""
        self.new_tokens = 0
        """Prompt tokens sent to it that no engine can have had before: its prefix cache cannot have known them."""
        self._prompts: set[int] = set()
        self._turns: set[asyncio.Timeout] = set()

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn. Raises ``EngineUnavailable`` as soon as the engine is lost, without waiting for its answer."""
        if self.fault is not None:
            raise EngineUnavailable(self.fault)
        try:
            async with asyncio.timeout(None) as turn:
                self._turns.add(turn)
                try:
                    return await self.engine.generate(request)
                finally:
                    self._turns.discard(turn)
        except TimeoutError:
            if not turn.expired():
                raise
            raise EngineUnavailable(self.fault or "") from None

    def count_new(self, request: GenerateRequest, counted: int) -> None:
        """Count what is new in a turn's prompt, of which ``counted`` tokens were counted before.

        A prompt is new once in an engine: rollouts of one problem share it.
        """
        if not counted:
            prompt = hash(tuple(request.prompt_ids))
            if prompt in self._prompts:
                return
            self._prompts.add(prompt)
        self.new_tokens += max(0, len(request.prompt_ids) - counted)

    def forget_prompts(self) -> None:
        """New weights: what was cached is of no use."""
        self._prompts.clear()

    def end(self, fault: str) -> None:
        """The engine is lost: interrupt its turns."""
        self.fault = fault
        now = asyncio.get_running_loop().time()
        for turn in self._turns:
            turn.reschedule(now)
        self._turns.clear()


@dataclass(slots=True)
class Member:
    """One engine and what its pool knows of it."""

    engine: RolloutEngine
    service: Service | None = None
    """None while it is dead or starting."""
    version: int | None = None
    """The weights that it reported last."""
    fault: str = "not started"
    care: asyncio.Task[None] | None = None
    """Its restart, while there is one."""
    exam: "asyncio.Future[None] | None" = None
    """The question whether it lives, while it is asked."""
    push: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> str:
        return self.engine.name
