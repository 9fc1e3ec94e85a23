"""The seam between rollouts and whatever samples tokens: ids in, ids and log-probabilities out.

Every engine is a process of its own behind this protocol (vLLM) or an honest in-memory twin (scripted);
both sit the same exam, ``tests/engine/rollout``. Leaves out the turn loop (``agent.py``) and admission
(``scheduler.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


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


class RolloutEngine(Protocol):
    """What samples. All methods raise ``EngineUnavailable`` when the engine itself fails."""

    name: str

    async def start(self) -> None:
        """Become ready to generate; may take a minute."""

    async def generate(self, request: GenerateRequest) -> Generation:
        """Sample one turn. Safe to call many times concurrently."""
        ...

    async def load_weights(self, folder: Path, version: int) -> None:
        """Serve the weights of a Hugging Face folder as ``version``; returns when no old state is left.

        The order is: update, finish, reset the prefix cache, accept requests.
        """

    async def capacity(self) -> EngineCapacity: ...

    async def metrics(self) -> dict[str, float]:
        """Load figures by name: running, waiting, kv_usage, preemptions, generated_tokens."""
        ...

    async def close(self) -> None:
        """Leave no process. May be called twice."""
