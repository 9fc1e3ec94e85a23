"""The seam between rollouts and whatever samples tokens: ids in, ids and log-probabilities out.

Every engine is a process of its own behind this protocol (vLLM) or an honest in-memory twin (scripted);
both sit the same exam, ``tests/engine/rollout``. Leaves out the turn loop (``agent.py``), admission
(``scheduler.py``) and how weights get here (``engine.weights``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from engine.learner.base import TransferGroup, WeightSpec


class EngineUnavailable(Exception):
    """We failed: the engine died, refused or did not answer. Never a property of the model's answer."""


class FinishReason(StrEnum):
    """Why one generation ended."""

    stop = "stop"
    length = "length"
    abort = "abort"


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One turn to sample. ``temperature`` 0 is greedy; there is no per-request seed (it kills vLLM on CPU).

    ``replica`` tells the rollouts of a group apart for the deterministic twin, so that what it samples does
    not depend on the order in which requests arrive; a real engine ignores it.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    stop_token_ids: tuple[int, ...]
    replica: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampled ids with one log-probability each, the stop token included when it was sampled.

    ``version`` is the weight version that sampled them. Log-probabilities are processed ones (after
    temperature).
    """

    ids: list[int]
    logprobs: list[float]
    finish: FinishReason
    version: int


@dataclass(frozen=True, slots=True)
class EngineCapacity:
    """KV cache of an engine, in tokens and in blocks of tokens; read from the engine after its start."""

    kv_blocks: int
    block_tokens: int
    max_model_tokens: int


class Weights:
    """Weights that engines are to serve: their version, and a folder that is written when somebody first wants it.

    ``write`` is called once at most. A broadcast needs no folder; an engine that comes back later does.
    """

    def __init__(self, version: int, write: Callable[[], Awaitable[Path]]) -> None:
        self.version = version
        self._write = write
        self._writing: asyncio.Future[Path] | None = None

    def want_folder(self) -> "asyncio.Future[Path]":
        """Have the folder written, now: while whoever writes it still has these weights."""
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        return self._writing

    async def folder(self) -> Path:
        """A Hugging Face folder with the weights. Raises what the writing raised."""
        return await asyncio.shield(self.want_folder())  # who stops waiting does not stop it for the others


class WeightReceiver(Protocol):
    """The end of an engine that takes weights from a process group. Methods raise ``EngineUnavailable``.

    An update is ``begin_update``, ``receive``, ``finish_update``. From the first to the end of the last the engine
    answers nobody and reports no version; one whose update broke off must be started again.
    """

    name: str
    ranks: int
    """Members of a group that the engine makes up: its workers."""

    @property
    def group(self) -> TransferGroup | None:
        """The group that it has joined since its start."""
        ...

    async def join(self, group: TransferGroup, first_rank: int) -> None:
        """Make up ``ranks`` members from ``first_rank`` on; returns when every member of the group is there."""

    async def begin_update(self) -> None:
        """Let running turns end and hold later ones back."""

    async def receive(self, specs: Sequence[WeightSpec]) -> None:
        """Take what rank 0 of the group sends: the tensors of ``specs``, in that order."""

    async def finish_update(self, version: int) -> None:
        """Serve what was received as ``version``; returns when no old state is left."""


class RolloutEngine(Protocol):
    """What samples. All methods raise ``EngineUnavailable`` when the engine itself fails."""

    name: str

    def receiver(self) -> WeightReceiver | None:
        """Its end of a weight transfer; None if it can take weights from folders only."""
        ...

    async def start(self) -> None:
        """Become ready to generate; may take a minute."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn. Safe to call many times concurrently."""
        ...

    async def load_weights(self, folder: Path, version: int) -> None:
        """Serve the weights of a Hugging Face folder as ``version``; returns when no old state is left.

        The order is: update, finish, reset the prefix cache, accept requests.
        """

    async def weight_version(self) -> int | None:
        """What the engine itself reports that it serves; None in an update that is not finished, or broke off."""
        ...

    async def capacity(self) -> EngineCapacity: ...

    async def metrics(self) -> dict[str, float]:
        """Load figures by name: running, waiting, kv_usage, preemptions, generated_tokens."""
        ...

    async def close(self) -> None:
        """Leave no process. May be called twice."""
