"""Where a stage's problems come from, and that evaluation problems never occur in training.

All evaluation problems of a recipe are known before it starts; generators of training data avoid them by text, and a
problem file's rows that are among them are left out.
"""

import random
from collections.abc import Iterable
from typing import Protocol

from engine.contract.job import ArithmeticProblems, EvalStage, FileProblems, Recipe
from engine.data.arithmetic import held_out_problems, make_problems
from engine.data.problem import DataError, Problem, read_problems
from engine.reward import Verdict, grade
from engine.stages.context import StageContext


class Pool(Protocol):
    """Training problems."""

    def draw(self, rng: random.Random, count: int) -> list[Problem]: ...


class GeneratedPool:
    """Fresh problems at every draw."""

    def __init__(self, problems: ArithmeticProblems, without: frozenset[str]) -> None:
        self._problems = problems
        self._without = without

    def draw(self, rng: random.Random, count: int) -> list[Problem]:
        made = make_problems(rng, count, self._problems.operations, without=self._without)
        return [each.problem for each in made]


class FilePool:
    """Problems of a user's file, drawn without repetition within a step as long as there are enough."""

    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems

    def draw(self, rng: random.Random, count: int) -> list[Problem]:
        whole, rest = divmod(count, len(self._problems))
        return self._problems * whole + rng.sample(self._problems, rest)


def eval_problems(stage: EvalStage) -> list[Problem]:
    if isinstance(stage.problems, FileProblems):
        return read_problems(stage.problems.path)[: stage.count]
    made = held_out_problems(stage.problem_seed, stage.count, stage.problems.operations)
    return [each.problem for each in made]


def held_out_texts(recipe: Recipe) -> frozenset[str]:
    """Texts of every evaluation problem of the recipe."""
    evals = [stage for stage in recipe.stages if isinstance(stage, EvalStage)]
    return frozenset(problem.text for stage in evals for problem in eval_problems(stage))


def training_problems(context: StageContext, source: ArithmeticProblems | FileProblems) -> Pool:
    """The pool of an RL stage. Raises ``DataError`` when nothing usable is left."""
    if isinstance(source, ArithmeticProblems):
        return GeneratedPool(source, context.held_out)
    problems = read_problems(source.path)
    kept = [p for p in problems if p.text not in context.held_out]
    _tell(context, source, len(problems) - len(kept), "are evaluation problems")
    return FilePool(list(_usable(context, source, kept)))


def _usable(context: StageContext, source: FileProblems, problems: list[Problem]) -> Iterable[Problem]:
    """Problems with a gold answer that can be read and a prompt that leaves room for a response."""
    gradable = [p for p in problems if grade(p.answer, p.answer) is not Verdict.ungradable]
    _tell(context, source, len(problems) - len(gradable), "have an answer that the grader cannot read")
    limit = context.recipe.model.context_tokens
    fitting = [p for p in gradable if len(context.renderer.prompt(p.text)) < limit]
    _tell(context, source, len(gradable) - len(fitting), f"are longer than the context of {limit} tokens")
    if not fitting:
        raise DataError(f"{source.path}: no usable problem is left")
    return fitting


def _tell(context: StageContext, source: FileProblems, count: int, why: str) -> None:
    if count:
        context.warn(f"{source.path}: {count} problems {why} and are left out")
