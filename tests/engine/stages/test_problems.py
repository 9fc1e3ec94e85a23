"""Where problems come from: evaluation is kept out of training, a file's bad rows are told and left out."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.contract.job import ArithmeticProblems, FileProblems, Recipe
from engine.data.problem import DataError
from engine.stages.evaluate import fitting_problems
from engine.stages.problems import FilePool, eval_problems, held_out_texts, training_problems

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


def write(folder: Path, *rows: str) -> FileProblems:
    path = folder / "problems.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return FileProblems(kind="file", path=path)


def test_generated_training_problems_avoid_the_recipes_evaluation_problems() -> None:
    found = recipe(problems={"kind": "arithmetic", "operations": {1: 1.0}}, count=300)
    pool = training_problems(context(found), ArithmeticProblems(operations={1: 1.0}))
    drawn = {problem.text for problem in pool.draw(random.Random(0), 2000)}
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
    pool = training_problems(given, source)
    assert {p.text for p in pool.draw(random.Random(0), 3)} == {"1+1?"}
    assert [line.split(": ", 1)[1] for line in given.warnings] == [
        "1 problems are evaluation problems and are left out",
        "1 problems have an answer that the grader cannot read and are left out",
        f"1 problems are longer than the context of {CONTEXT} tokens and are left out",
    ]


def test_a_file_with_nothing_usable_stops_before_anything_starts(tmp_path: Path) -> None:
    source = write(tmp_path, f'{{"problem": "{"long " * 40}", "answer": "2"}}')
    with pytest.raises(DataError, match="no usable problem is left"):
        training_problems(context(recipe()), source)


def test_an_evaluation_problem_longer_than_the_context_is_left_out_not_wrong(tmp_path: Path) -> None:
    source = write(tmp_path, '{"problem": "1+1?", "answer": "2"}', f'{{"problem": "{"long " * 40}", "answer": "2"}}')
    found = recipe(problems={"kind": "file", "path": str(source.path)})
    given = context(found)
    assert [p.text for p in fitting_problems(given, found.stages[0])] == ["1+1?"]
    assert given.warnings == [f"eval: 1 problems are longer than the context of {CONTEXT} tokens"]


def test_a_file_pool_repeats_only_when_it_must() -> None:
    problems = eval_problems(recipe().stages[0])
    drawn = FilePool(problems).draw(random.Random(0), 6)
    assert len({p.text for p in drawn}) == 4
    assert len({p.text for p in FilePool(problems).draw(random.Random(0), 3)}) == 3
