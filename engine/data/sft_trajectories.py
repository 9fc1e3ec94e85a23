"""SFT trajectories for arithmetic problems, with errors planted on purpose and every call really executed.

As in the paper's non-reasoning SFT the trajectories teach form (tags, tool calls, answer), not correctness: they are
not filtered. What goes wrong, and how often, is the recipe's ``planted``; RL is then seen to remove it. A script is
decided first, without running anything; then its calls run concurrently and their real responses are filled in.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from engine.contract.stages import PlantedErrors
from engine.data.arithmetic import ArithmeticProblem
from engine.data.protocol import answer, call_json
from engine.data.render import Message

PLANS = (
    "I will run Python.",
    "Let me write a short program for this.",
    "Let me set up the values, apply each operation in order and print the result.",
)
RETRIES = (
    "The code failed. Let me fix it.",
    "There was an error, so I correct the program and run it again.",
)
MOST_CALLS = 4

RunTool = Callable[[str], Awaitable[str]]
"""The text of an assistant turn -> the tool response that the turn loop would give for it."""


@dataclass(frozen=True, slots=True)
class Script:
    """A trajectory before its calls ran: assistant turns with one call each, then how it ends.

    ``guess`` is the answer given without relying on the last response; None answers with what was printed.
    """

    calls: tuple[str, ...]
    guess: str | None
    doubled: bool


def write_program(rng: random.Random, made: ArithmeticProblem, wrong: float) -> list[str]:
    """The program's lines; each operation is computed wrongly with probability ``wrong``."""
    imports = ["import math"] if made.needs_math else []
    steps = [rng.choice(o.wrong) if rng.random() < wrong else o.expression for o in made.operations]
    return [*imports, *(f"x={step}" for step in steps), "print(x)"]


def break_program(rng: random.Random, lines: list[str]) -> list[str]:
    """The same program with one fault that raises: a name, a parenthesis, or the missing import."""
    faults = [[*lines[:-1], "print(x"], [*lines[:-1], "print(y)"], [*lines[:-1], "print(result)"]]
    if lines[0] == "import math":
        faults += [lines[1:]] * 3
    return rng.choice(faults)


def _one_call(rng: random.Random, lines: list[str], bug: float, invalid: float) -> tuple[str, bool]:
    """A call's text and whether it will fail."""
    draw = rng.random()
    if draw < bug:
        return f"<tool_call>{call_json(chr(10).join(break_program(rng, lines)))}</tool_call>", True
    call = call_json("\n".join(lines))
    failed = draw < bug + invalid
    return f"<tool_call>{call[:-2] if failed else call}</tool_call>", failed


def write_script(rng: random.Random, made: ArithmeticProblem, planted: PlantedErrors) -> Script:
    """Decide one trajectory: programs, their faults, and how it ends."""
    plan = f"<reason>{rng.choice(PLANS)}</reason>"
    guess = str(rng.randint(1, 9999))
    doubled = rng.random() < planted.doubled_answer
    if rng.random() < planted.no_tool:
        return Script((plan,), guess, doubled)
    lines, bug, calls = write_program(rng, made, planted.wrong_operation), planted.buggy_call, []
    while True:
        call, failed = _one_call(rng, lines, bug, planted.invalid_json)
        calls.append(plan + call)
        if not failed:
            return Script(tuple(calls), None, doubled)
        if len(calls) == MOST_CALLS or rng.random() < planted.give_up:
            return Script(tuple(calls), guess, doubled)
        plan, bug = f"<reason>{rng.choice(RETRIES)}</reason>", planted.buggy_retry


async def perform(script: Script, run_tool: RunTool) -> list[Message]:
    """Run a script's calls and write the conversation down."""
    if script.guess is not None and "<tool_call>" not in script.calls[0]:
        return [Message("assistant", (script.calls[0] + _ending(script, script.guess),))]
    responses = await asyncio.gather(*(run_tool(call) for call in script.calls))
    messages = []
    for call, response in zip(script.calls, responses, strict=True):
        messages += [Message("assistant", (call,)), Message("tool", (response,))]
    value = script.guess if script.guess is not None else responses[-1]
    return [*messages, Message("assistant", (_ending(script, value),))]


def _ending(script: Script, value: str) -> str:
    return answer(value) * (2 if script.doubled else 1)


def sample_texts(rng: random.Random, problems: Sequence[ArithmeticProblem], planted: PlantedErrors) -> list[str]:
    """Texts to train a tokenizer on: problems and scripts, nothing executed."""
    texts = []
    for made in problems:
        script = write_script(rng, made, planted)
        texts += [made.problem.text, *script.calls, _ending(script, made.problem.answer)]
    return texts
