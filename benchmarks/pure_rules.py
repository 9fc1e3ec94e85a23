"""Rollouts a second through the pure rules on one core: parsing calls, RoC selection of groups of 32.

The paper's step has 512 groups of 32 rollouts; the last figure says what that costs.
"""

import random
import time
from typing import Any

from engine.data.protocol import tool_call
from engine.downsample import Candidate, Roc
from engine.rollout.toolcalls import parse_tool_calls
from engine.rollout.tools.python import PYTHON_TOOL

GROUPS, SIZE, KEEP, TEXTS = 256, 32, 16, 20_000


def candidates(rng: random.Random) -> list[Candidate]:
    return [
        Candidate(
            index=i,
            reward=float(rng.random() < 0.5),
            calls=3,
            errors=rng.randint(0, 3),
            answer_opens=1,
            answer_closes=1,
            turns=4,
            u=1.0 - rng.random(),
        )
        for i in range(SIZE)
    ]


def measure() -> dict[str, Any]:
    rng = random.Random(0)
    groups = [candidates(rng) for _ in range(GROUPS)]
    began = time.perf_counter()
    for group in groups:
        Roc().select(group, KEEP)
    selecting = (time.perf_counter() - began) / GROUPS
    text = f"<reason>think</reason>{tool_call('print(1)')}"
    began = time.perf_counter()
    for _ in range(TEXTS):
        parse_tool_calls(text, (PYTHON_TOOL,))
    parsing = (time.perf_counter() - began) / TEXTS
    return {
        "roc_groups_per_s": 1 / selecting,
        "parsed_turns_per_s": 1 / parsing,
        "paper_step_selection_s": 512 * selecting,
    }
