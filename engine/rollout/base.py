"""The seam between rollouts and whatever samples tokens: ids in, ids and log-probabilities out.

Every engine is a process of its own (vLLM), a server that somebody else started (SGLang, OpenAI-compatible) or an
honest in-memory twin (scripted); all sit the same exam, ``tests/engine/rollout/test_exam.py``. Leaves out the turn
loop (``agent.py``), admission (``scheduling``), restarts (``pool.py``) and how weights get here (``engine.weights``).
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
    """One turn to sample, or what is left of one. ``temperature`` 0 is greedy; no seed (it kills vLLM on CPU).

    The last two are for the deterministic twin, so that what it samples does not depend on the order in which
    requests arrive nor on how a turn is cut into pieces; a real engine ignores them. ``replica`` tells the rollouts
    of a group apart; ``turn_tokens`` says how many of the last prompt ids this turn has already.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    temperature: float
    stop_token_ids: tuple[int, ...]
    replica: int = 0
    turn_tokens: int = 0


def check_fits(request: GenerateRequest, max_model_tokens: int) -> None:
    """A request that overruns the context is its caller's mistake (``ValueError``) and is never sent."""
    prompt, more = len(request.prompt_ids), request.max_tokens
    if not prompt or more < 1:
        raise ValueError(f"{prompt} prompt tokens, max_tokens {more}: nothing to do")
    if prompt + more > max_model_tokens:
        raise ValueError(f"{prompt} prompt tokens, max_tokens {more}: over the context of {max_model_tokens}")


@dataclass(frozen=True, slots=True)
class Generation:
    """Sampled ids with one log-probability each, the stop token included when it was sampled.

    ``version`` is the weight version that sampled them. Log-probabilities are processed ones (after
    temperature); None from an engine that does not tell them, and then good for evaluation only.
    """

    ids: list[int]
    logprobs: list[float] | None
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
    takes_weights: bool
    """Whether it can serve other weights than those it started with (version 0)."""
    tells_logprobs: bool
    """Whether its generations have log-probabilities. Known after ``start``; without them nothing can be trained."""

    def receiver(self) -> WeightReceiver | None:
        """Its end of a weight transfer; None if it takes weights from folders only, or none at all."""
        ...

    async def start(self) -> None:
        """Become ready to generate, with version 0; may take a minute."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn. Safe to call many times concurrently; cancelling it ends the work in the engine too.

        ``ValueError`` if what is asked can never be done: over the context, or refused by the server as wrong.
        """
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
        """Load figures by name; empty from an engine that cannot say. Counters are since its start.

        running, waiting, preemptions: requests. kv_usage: share of the KV cache that live requests hold.
        generated_tokens. Where known: prefix_queries and prefix_hits, prompt tokens asked for and found in the cache.
        """
        ...

    async def close(self) -> None:
        """Leave no process. May be called twice."""
