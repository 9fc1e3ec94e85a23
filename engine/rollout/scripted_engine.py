"""An honest twin of a rollout engine: no model, no process, the same promises.

A policy is a function from prompt ids, weight version and a random source to token ids. What it gets is
deterministic: the random source is seeded by the engine's ``seed``, the loaded weights' bytes, the prompt
and, unless the request is greedy, the weight version, the temperature and the request's ``replica``. So
neither the order of requests nor the engine that serves one nor the pieces in which a turn is asked for changes
what is sampled, and greedy answers depend on the weights alone.

Every token has log-probability ``LOGPROB``. Leaves out anything a real engine does with time, unless
``pace`` does it, and process groups: it has no process of its own, so weights come from folders.
"""

import asyncio
import hashlib
import math
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from engine.rollout.base import (
    EngineCapacity,
    EngineUnavailable,
    FinishReason,
    GenerateRequest,
    Generation,
    WeightReceiver,
    check_fits,
)

LOGPROB = -math.log(4)

Policy = Callable[[list[int], int, random.Random], list[int]]
Pace = Callable[[GenerateRequest], Awaitable[None]]


async def _at_once(_: GenerateRequest) -> None:
    await asyncio.sleep(0)


class ScriptedEngine:
    """Samples what its policy says. Tests hold requests up by ``pace``, and end it by ``die``."""

    takes_weights = True
    tells_logprobs = True

    def __init__(
        self,
        name: str,
        policy: Policy,
        *,
        seed: int = 0,
        capacity: EngineCapacity | None = None,
        pace: Pace = _at_once,
    ) -> None:
        self.name = name
        self.revivable = True
        self.starts = 0
        self._policy = policy
        self._seed = seed
        self._capacity = capacity or EngineCapacity(kv_blocks=1025, block_tokens=16, max_model_tokens=512)
        self._pace = pace
        self._dead = asyncio.Event()
        self._dead.set()
        self._running = 0
        self._generated = 0
        self._idle = asyncio.Event()
        self._accepting = asyncio.Event()
        self._version = 0
        self._weights = ""

    async def start(self) -> None:
        if not self.revivable:
            raise EngineUnavailable(f"engine {self.name} does not start")
        self.starts += 1
        self._running, self._generated, self._version, self._weights = 0, 0, 0, ""
        self._dead, self._idle, self._accepting = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._accepting.set()

    def die(self) -> None:
        """From now on, requests under way included, everything fails until the next start."""
        self._dead.set()

    async def generate(self, request: GenerateRequest) -> Generation:
        check_fits(request, self._capacity.max_model_tokens)
        await self._alive(self._accepting.wait())
        self._running += 1
        self._idle.clear()
        dead = self._dead
        try:
            await self._alive(self._pace(request))
            return self._sample(request)
        finally:
            if dead is self._dead:  # a request of before a restart counts no longer
                self._running -= 1
                if not self._running:
                    self._idle.set()

    def _sample(self, request: GenerateRequest) -> Generation:
        prompt = list(request.prompt_ids[: len(request.prompt_ids) - request.turn_tokens])
        turn = _ended(self._policy(prompt, self._version, self._random(prompt, request)), request.stop_token_ids)
        rest = turn[request.turn_tokens :] or list(request.stop_token_ids[:1])  # new weights may make it shorter
        ids = rest[: request.max_tokens]
        stopped = bool(ids) and ids[-1] in request.stop_token_ids
        self._generated += len(ids)
        finish = FinishReason.stop if stopped else FinishReason.length
        return Generation(ids, [LOGPROB] * len(ids), finish, self._version)

    def _random(self, prompt: list[int], request: GenerateRequest) -> random.Random:
        key: list[object] = [self._seed, self._weights, prompt]
        if request.temperature > 0:
            key += [self._version, request.temperature, request.replica]
        return random.Random(repr(key))

    def receiver(self) -> WeightReceiver | None:
        return None

    async def load_weights(self, folder: Path, version: int) -> None:
        """As the real one: requests under way end first, others wait and get the new weights."""
        self._accepting.clear()
        await self._alive(self._idle.wait())
        digest = await asyncio.to_thread(_digest, folder)
        if digest is None:
            self.die()
            raise EngineUnavailable(f"engine {self.name}: no weights in {folder}")
        self._weights, self._version = digest, version
        self._accepting.set()

    async def weight_version(self) -> int | None:
        await self._alive(asyncio.sleep(0))
        return self._version if self._accepting.is_set() else None

    async def capacity(self) -> EngineCapacity:
        await self._alive(asyncio.sleep(0))
        return self._capacity

    async def metrics(self) -> dict[str, float]:
        await self._alive(asyncio.sleep(0))
        idle = {"waiting": 0.0, "kv_usage": 0.0, "preemptions": 0.0}
        return {**idle, "running": float(self._running), "generated_tokens": float(self._generated)}

    async def close(self) -> None:
        self.die()

    async def _alive(self, work: Awaitable[object]) -> None:
        """Wait for ``work``, but no longer than we live."""
        working = asyncio.ensure_future(work)
        dying = asyncio.ensure_future(self._dead.wait())
        try:
            await asyncio.wait((working, dying), return_when=asyncio.FIRST_COMPLETED)
            if dying.done():
                raise EngineUnavailable(f"engine {self.name} is dead")
            await working
        finally:
            for task in (working, dying):
                task.cancel()
            await asyncio.gather(working, dying, return_exceptions=True)


def _ended(turn: list[int], stops: tuple[int, ...]) -> list[int]:
    """The policy's tokens to the first stop token, put there if missing."""
    places = [place for place, token in enumerate(turn) if token in stops]
    return turn[: places[0] + 1] if places else [*turn, *stops[:1]]


def _digest(folder: Path) -> str | None:
    """SHA-256 over the folder's weights; None if there are none, or none any more."""
    digest = hashlib.sha256()
    try:
        contents = [file.read_bytes() for file in sorted(folder.glob("*.safetensors"))]
    except FileNotFoundError:
        return None
    for content in contents:
        digest.update(content)
    return digest.hexdigest() if contents else None
