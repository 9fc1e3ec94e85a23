"""Batches with the lengths of real rollouts: many short ones and a long tail. Ids are random, timing does not mind."""

import random
from dataclasses import dataclass
from typing import Any

from engine.learner.base import Sample


@dataclass(frozen=True, slots=True)
class Lengths:
    """``shortest`` tokens and an exponential tail, ``tail`` tokens on average, cut at ``longest``."""

    samples: int
    shortest: int
    tail: int
    longest: int

    def draw(self, rng: random.Random) -> list[int]:
        drawn = (self.shortest + rng.expovariate(1 / self.tail) for _ in range(self.samples))
        return [min(self.longest, round(length)) for length in drawn]


def make_batch(lengths: Lengths, vocabulary: int, *, seed: int = 0) -> list[Sample]:
    """Samples of a third prompt, then sampled text with a tool's answer in its middle, an eighth of the length.

    Advantages are 1 and -1 in turn.
    """
    rng = random.Random(seed)
    lines = enumerate(lengths.draw(rng))
    return [_sample(rng, length, vocabulary, advantage=(-1.0) ** row) for row, length in lines]


def _sample(rng: random.Random, length: int, vocabulary: int, *, advantage: float) -> Sample:
    prompt, tool = length // 3, range(length // 2, length // 2 + length // 8)
    return Sample(
        ids=[rng.randrange(vocabulary) for _ in range(length)],
        trained=[place >= max(prompt, 1) and place not in tool for place in range(length)],
        advantage=advantage,
    )


def describe_batch(batch: list[Sample]) -> dict[str, Any]:
    lengths = sorted(len(sample.ids) for sample in batch)
    return {
        "samples": len(batch),
        "tokens": sum(lengths),
        "trained_tokens": sum(sum(sample.trained) for sample in batch),
        "shortest": lengths[0],
        "median": lengths[len(lengths) // 2],
        "longest": lengths[-1],
    }
