"""Batches of rollouts to simulate: how many turns, how long each, how long each tool takes.

A shape is a stage of the paper's training: mean and cap of the response length. Lengths are lognormal with an effect
of the problem and one of the rollout, clipped at the cap and scaled so that their mean is the shape's; turns are 1 +
Poisson(2.75), at most 10 (45K calls a batch, paper section 3); a tool takes lognormal time around 0.2 s, and 2 % run
into a time-out of 4 s. A tool's response counts in the length. Leaves out batches of recorded runs: ``replay.py``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.rollout.scheduling.base import Size

PROMPT_TOKENS = 400
TOOL_TOKENS = 60

_SPREAD_OF_PROBLEMS = 0.45
_SPREAD_OF_ROLLOUTS = 0.45
_MOST_TURNS = 10
_MORE_TURNS = 2.75
_LEAST_TURN_TOKENS = 8
_TOOL_S = 0.2
_TOOL_SPREAD = 0.6
_TIME_OUT_S = 4.0
_TIME_OUT_SHARE = 0.02
_SPLIT = 1.5
"""Of the Dirichlet distribution that splits a response into turns: turns of one rollout differ a good deal."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths of a stage's responses, tokens, and the batch's counts."""

    mean_tokens: int
    cap_tokens: int
    problems: int = 512
    rollouts: int = 32

    @property
    def name(self) -> str:
        return f"{self.mean_tokens // 1000}K/{self.cap_tokens // 1000}K"


SHAPES = (Shape(4_000, 8_000), Shape(6_000, 12_000), Shape(8_000, 12_000))


@dataclass(frozen=True, slots=True)
class SimulatedRollout:
    """What one rollout does, fixed before it runs. Tokens and seconds.

    ``sampled`` has an entry a turn; ``answered`` and ``tool_s``, what the tool said and how long it took, one a turn
    but the last.
    """

    size: Size
    sampled: tuple[int, ...]
    answered: tuple[int, ...]
    tool_s: tuple[float, ...]

    @property
    def response_tokens(self) -> int:
        return sum(self.sampled) + sum(self.answered)


def make_workload(shape: Shape, seed: int) -> list[SimulatedRollout]:
    """A batch in the order of submission: problem by problem. The same for the same seed."""
    random = np.random.default_rng(seed)
    count = shape.problems * shape.rollouts
    lengths = _lengths(random, shape)
    turns = np.minimum(1 + random.poisson(_MORE_TURNS, count), _MOST_TURNS)
    sampled = _split(random, lengths - TOOL_TOKENS * (turns - 1), turns)
    tool_s = _tool_seconds(random, count)
    rollouts = []
    for number, (calls, row, waits) in enumerate(
        zip((turns - 1).tolist(), sampled.tolist(), tool_s.tolist(), strict=True)
    ):
        size = Size(f"{seed}-{number // shape.rollouts}", PROMPT_TOKENS, PROMPT_TOKENS + shape.cap_tokens)
        rollouts.append(SimulatedRollout(size, tuple(row[: calls + 1]), (TOOL_TOKENS,) * calls, tuple(waits[:calls])))
    return rollouts


def make_lengths(shape: Shape, seed: int) -> list[int]:
    """Response lengths of ``make_workload``, without the rest."""
    lengths: list[int] = _lengths(np.random.default_rng(seed), shape).tolist()
    return lengths


def _lengths(random: np.random.Generator, shape: Shape) -> NDArray[np.int64]:
    """Response lengths, clipped at the cap, with the shape's mean to a token or so."""
    problem = np.repeat(random.normal(0, _SPREAD_OF_PROBLEMS, shape.problems), shape.rollouts)
    factor = np.exp(problem + random.normal(0, _SPREAD_OF_ROLLOUTS, problem.size))
    least = _MOST_TURNS * (_LEAST_TURN_TOKENS + TOOL_TOKENS)
    low, high = 0.0, 10.0 * shape.cap_tokens
    for _ in range(50):
        middle = (low + high) / 2
        if np.clip(factor * middle, least, shape.cap_tokens).mean() < shape.mean_tokens:
            low = middle
        else:
            high = middle
    clipped: NDArray[np.int64] = np.clip(factor * high, least, shape.cap_tokens).astype(np.int64)
    return clipped


def _split(random: np.random.Generator, tokens: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each rollout's sampled tokens over its turns, [rollouts, most turns]; the last turn takes what is left over."""
    weights = random.gamma(_SPLIT, size=(tokens.size, _MOST_TURNS))
    weights[np.arange(_MOST_TURNS) >= turns[:, None]] = 0
    spare = tokens - _LEAST_TURN_TOKENS * turns
    share = weights / weights.sum(1, keepdims=True)
    parts: NDArray[np.int64] = (share * spare[:, None]).astype(np.int64) + _LEAST_TURN_TOKENS
    parts[np.arange(_MOST_TURNS) >= turns[:, None]] = 0
    parts[np.arange(tokens.size), turns - 1] += tokens - parts.sum(1)
    return parts


def _tool_seconds(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    seconds = np.exp(random.normal(np.log(_TOOL_S), _TOOL_SPREAD, (count, _MOST_TURNS)))
    late: NDArray[np.bool_] = random.random(seconds.shape) < _TIME_OUT_SHARE
    return np.where(late, _TIME_OUT_S, seconds)
