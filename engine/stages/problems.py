"""Where a stage's problems come from, and that evaluation problems never occur in training.

All evaluation problems of a recipe are known before it starts; generators of training data avoid them by text, and a
problem file's rows that are among them are left out.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from engine.contract.job import Recipe
from engine.contract.problems import ArithmeticProblems, FileProblems
from engine.contract.stages import EvalStage, RlStage
from engine.data.arithmetic import held_out_problems, make_problems
from engine.data.problem import DataError, Problem, read_problems
from engine.randomness import stream
from engine.reward import Verdict, grade
from engine.stages.context import StageContext


class Pool(Protocol):
    """Training problems of a stage."""

    def of_step(self, step: int, cursor: int) -> Iterator[Problem]:
        """The step's problems, without end: take as many as needed. ``cursor`` were taken in the steps before."""
        ...


class GeneratedPool:
    """Fresh problems: a step's are a function of (seed, stage, step)."""

    def __init__(self, problems: ArithmeticProblems, without: frozenset[str], *, seed: int, stage: str) -> None:
        self._problems = problems
        self._without = without
        self._name = (seed, stage)

    def of_step(self, step: int, cursor: int) -> Iterator[Problem]:
        seed, stage = self._name
        rng = stream(seed, stage, "problems", step)
        while True:
            (made,) = make_problems(rng, 1, self._problems.operations, without=self._without)
            yield made.problem


class FilePool:
    """Problems of a user's file, each once an epoch; an epoch's order is a function of (seed, stage, epoch).

    A step over the end of an epoch may have a problem twice: that makes two groups.
    """

    def __init__(self, problems: Sequence[Problem], *, seed: int, stage: str) -> None:
        self._problems = problems
        self._name = (seed, stage)

    def of_step(self, step: int, cursor: int) -> Iterator[Problem]:
        epoch, place = divmod(cursor, len(self._problems))
        while True:
            yield from self._in_order(epoch)[place:]
            epoch, place = epoch + 1, 0

    def _in_order(self, epoch: int) -> list[Problem]:
        seed, stage = self._name
        return stream(seed, stage, "epoch", epoch).sample(list(self._problems), len(self._problems))


def eval_problems(stage: EvalStage) -> list[Problem]:
    if isinstance(stage.problems, FileProblems):
        return read_problems(stage.problems.path)[: stage.count]
    made = held_out_problems(stage.problem_seed, stage.count, stage.problems.operations)
    return [each.problem for each in made]


def held_out_texts(recipe: Recipe) -> frozenset[str]:
    """Texts of every evaluation problem of the recipe."""
    evals = [stage for stage in recipe.stages if isinstance(stage, EvalStage)]
    return frozenset(problem.text for stage in evals for problem in eval_problems(stage))


def training_problems(context: StageContext, stage: RlStage) -> Pool:
    """The pool of an RL stage. Raises ``DataError`` when nothing usable is left."""
    source, seed = stage.problems, context.recipe.seed
    if isinstance(source, ArithmeticProblems):
        return GeneratedPool(source, context.held_out, seed=seed, stage=stage.name)
    problems = read_problems(source.path)
    kept = [p for p in problems if p.text not in context.held_out]
    _tell(context, source, len(problems) - len(kept), "are evaluation problems")
    return FilePool(_usable(context, source, kept), seed=seed, stage=stage.name)


def _usable(context: StageContext, source: FileProblems, problems: list[Problem]) -> list[Problem]:
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
