"""A policy by script for whole-pipeline runs without a model: it calls the tool, then answers what was printed.

Asked for an expression such as ``17*23`` it writes a program for it, one time in four a wrong one and one time in four
one that fails; after a failure it writes it again. Deterministic in what ``ScriptedEngine`` hands it.
"""

import random
import re

from engine.data.protocol import answer, tool_call
from engine.data.render import Renderer
from engine.rollout.scripted_engine import Policy

_EXPRESSION = re.compile(r"\d+[-+*]\d+")
_RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)


def arithmetic_policy(renderer: Renderer) -> Policy:
    """Ids of the next turn, end mark included."""

    def act(prompt: list[int], version: int, rng: random.Random) -> list[int]:
        text = renderer.decode(prompt)
        return [*renderer.policy_text(_next_turn(text, rng)), renderer.end_id]

    return act


def _next_turn(text: str, rng: random.Random) -> str:
    responses = _RESPONSE.findall(text)
    if responses and responses[-1].lstrip("-").isdecimal():
        return answer(responses[-1])
    found = _EXPRESSION.search(text)
    expression = found.group() if found else "0"
    program = rng.choice(
        [f"print({expression})", f"print({expression})", f"print({expression}+1)", f"print({expression}"]
    )
    return f"<reason>I will run Python.</reason>{tool_call(program)}"
