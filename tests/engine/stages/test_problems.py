"""Where problems come from: evaluation is kept out of training, a file's bad rows are told and left out."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.contract.job import Recipe
from engine.contract.problems import ArithmeticProblems, FileProblems
from engine.contract.stages import RlStage
from engine.data.problem import DataError, Problem
from engine.stages.evaluate import fitting_problems
from engine.stages.problems import FilePool, Pool, eval_problems, held_out_texts, training_problems

CONTEXT = 64


def recipe(**eval_stage: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "test",
            "model": {"kind": "tiny-qwen3", "context_tokens": CONTEXT},
            "stages": [{"name": "eval", "kind": "eval", "max_response_tokens": 32, "count": 4, **eval_stage}],
        }
    )


def context(found: Recipe) -> Any:
    """A prompt of one id a character: the only things that these functions ask a context for."""
    warnings: list[str] = []
    return SimpleNamespace(
        recipe=found,
        held_out=held_out_texts(found),
        renderer=SimpleNamespace(prompt=list),
        warn=warnings.append,
        warnings=warnings,
    )


def stage(problems: ArithmeticProblems | FileProblems) -> RlStage:
    return RlStage(name="rl", kind="rl", steps=9, max_response_tokens=32, problems=problems)


def taken(pool: Pool, count: int, *, step: int = 1, cursor: int = 0) -> list[str]:
    return [problem.text for problem in itertools.islice(pool.of_step(step, cursor), count)]


def write(folder: Path, *rows: str) -> FileProblems:
    path = folder / "problems.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return FileProblems(kind="file", path=path)


def test_generated_training_problems_avoid_the_recipes_evaluation_problems() -> None:
    found = recipe(problems={"kind": "arithmetic", "operations": {1: 1.0}}, count=300)
    pool = training_problems(context(found), stage(ArithmeticProblems(operations={1: 1.0})))
    drawn = set(taken(pool, 2000))
    assert len(held_out_texts(found)) == 300
    assert not drawn & held_out_texts(found)


def test_what_a_file_holds_that_cannot_be_trained_on_is_told_and_left_out(tmp_path: Path) -> None:
    held_out = eval_problems(recipe().stages[0])[0]
    source = write(
        tmp_path,
        '{"problem": "1+1?", "answer": "2"}',
        f'{{"problem": "{"long " * 40}", "answer": "2"}}',
        '{"problem": "2+2?", "answer": "about four"}',
        f'{{"problem": "{held_out.text}", "answer": "{held_out.answer}"}}',
    )
    given = context(recipe())
    pool = training_problems(given, stage(source))
    assert set(taken(pool, 3)) == {"1+1?"}
    assert [line.split(": ", 1)[1] for line in given.warnings] == [
        "1 problems are evaluation problems and are left out",
        "1 problems have an answer that the grader cannot read and are left out",
        f"1 problems are longer than the context of {CONTEXT} tokens and are left out",
    ]


def test_a_file_with_nothing_usable_stops_before_anything_starts(tmp_path: Path) -> None:
    source = write(tmp_path, f'{{"problem": "{"long " * 40}", "answer": "2"}}')
    with pytest.raises(DataError, match="no usable problem is left"):
        training_problems(context(recipe()), stage(source))


def test_an_evaluation_problem_longer_than_the_context_is_left_out_not_wrong(tmp_path: Path) -> None:
    source = write(tmp_path, '{"problem": "1+1?", "answer": "2"}', f'{{"problem": "{"long " * 40}", "answer": "2"}}')
    found = recipe(problems={"kind": "file", "path": str(source.path)})
    given = context(found)
    assert [p.text for p in fitting_problems(given, found.stages[0])] == ["1+1?"]
    assert given.warnings == [f"eval: 1 problems are longer than the context of {CONTEXT} tokens"]


def test_a_step_of_generated_problems_is_a_function_of_its_number() -> None:
    pool = training_problems(context(recipe()), stage(ArithmeticProblems()))
    assert taken(pool, 8, step=3) == taken(pool, 8, step=3, cursor=40)
    assert taken(pool, 8, step=3)[:5] == taken(pool, 5, step=3), "a refill goes on where the first batch ended"
    assert not set(taken(pool, 8, step=3)) & set(taken(pool, 8, step=4))


def test_a_files_problems_come_once_an_epoch_in_another_order_each_time() -> None:
    problems = [Problem(str(number), "1") for number in range(30)]
    pool = FilePool(problems, seed=0, stage="rl")
    first, second = taken(pool, 30), taken(pool, 30, cursor=30)
    assert sorted(first) == sorted(second) == sorted(p.text for p in problems)
    assert first != second


def test_the_cursor_is_the_place_in_a_files_order_whatever_the_step() -> None:
    pool = FilePool([Problem(str(number), "1") for number in range(30)], seed=0, stage="rl")
    assert taken(pool, 20, cursor=0)[12:] + taken(pool, 60, cursor=20) == taken(pool, 68, step=5, cursor=12)
