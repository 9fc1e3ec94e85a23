"""The grader as a program of its own, which a sandbox runs: the very source of the reward's modules, and a main part.

It reads ``{"rule": ..., "answers": [{"gold", "text", "cut"}, ...]}`` on stdin and prints one ``Score`` a line, in that
order. No module of ours can be imported where it runs, so the sources travel inside of it. Leaves out who runs it, and
what becomes of answers that it could not grade: ``engine.stages.grading``.
"""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from engine.reward.base import ExtractRule, Score, Verdict

MODULES = ("engine.reward.base", "engine.reward.answer", "engine.reward.math_answers")
"""In the order in which they import each other; of everything else they import the standard library alone."""

_MAIN = """
import json, sys, types
from dataclasses import asdict

for name, source in SOURCES:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
asked = json.load(sys.stdin)
reward = sys.modules["engine.reward.math_answers"].MathReward(asked["rule"])
for each in asked["answers"]:
    print(json.dumps(asdict(reward.score(each["gold"], each["text"], cut=each["cut"]))))
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One rollout to grade: ``text`` is what the policy sampled, ``cut`` as in ``Reward.score``."""

    gold: str
    text: str
    cut: bool


class NotScores(ValueError):
    """What the program printed is not what it prints."""


@cache
def grader_program() -> str:
    """Python source; the standard library is all that it needs."""
    sources = [(name, _source(name)) for name in MODULES]
    return f"SOURCES = {sources!r}\n{_MAIN}"


def _source(module: str) -> str:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"{module} has no source file")
    return Path(found.origin).read_text(encoding="utf-8")


def as_stdin(answers: Sequence[Answer], rule: ExtractRule) -> str:
    """What the program reads."""
    return json.dumps({"rule": rule, "answers": [asdict(answer) for answer in answers]})


def read_scores(stdout: str, count: int) -> list[Score]:
    """What the program printed for ``count`` answers. Raises ``NotScores``."""
    try:
        scores = [_score(json.loads(line)) for line in stdout.splitlines()]
    except (ValueError, TypeError, KeyError) as error:
        raise NotScores(f"the grader printed what is no score: {error}") from error
    if len(scores) != count:
        raise NotScores(f"the grader was asked for {count} scores and printed {len(scores)}")
    return scores


def _score(fields: dict[str, object]) -> Score:
    made = Score(**{**fields, "verdict": Verdict(fields["verdict"])})  # type: ignore[arg-type]
    if made.status not in ("scored", "ungradable") or (made.reward is None) != (made.status == "ungradable"):
        raise ValueError(f"status {made.status!r} with reward {made.reward!r}")
    return made
