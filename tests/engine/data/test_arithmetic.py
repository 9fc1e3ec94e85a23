"""Generated problems: right answers, held-out problems kept out, and a set is a function of its seed."""

import contextlib
import io
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.data.arithmetic import compute, held_out_problems, make_problem, make_problems
from engine.data.sft_trajectories import break_program, write_program


def run(lines: list[str]) -> str:
    """Execute one of our own generated programs and return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec("\n".join(lines), {})
    return out.getvalue().strip()


@given(seed=st.integers(0, 10**6), length=st.integers(1, 4))
def test_the_right_program_prints_the_answer(seed: int, length: int) -> None:
    rng = random.Random(seed)
    made = make_problem(rng, length)
    assert run(write_program(rng, made, wrong=0.0)) == made.problem.answer
    assert compute(made.operations) == int(made.problem.answer)
    assert made.problem.kind == f"k={length}"


@given(seed=st.integers(0, 10**6))
def test_a_planted_bug_raises(seed: int) -> None:
    rng = random.Random(seed)
    lines = break_program(rng, write_program(rng, make_problem(rng, 2), wrong=0.0))
    with pytest.raises((NameError, SyntaxError)):
        run(lines)


def test_training_never_sees_held_out_problems() -> None:
    held_out = {each.problem.text for each in held_out_problems(99, 300, {1: 1.0})}
    made = make_problems(random.Random(0), 3000, {1: 1.0}, without=held_out)
    assert not held_out & {each.problem.text for each in made}
    unfiltered = make_problems(random.Random(0), 3000, {1: 1.0})
    assert held_out & {each.problem.text for each in unfiltered}, "without the filter they would meet"


def test_held_out_problems_are_different_and_in_proportion() -> None:
    problems = [each.problem for each in held_out_problems(1, 100, {1: 0.25, 2: 0.5, 3: 0.25})]
    assert len({problem.text for problem in problems}) == 100
    assert [sum(p.kind == f"k={k}" for p in problems) for k in (1, 2, 3)] == [25, 50, 25]


def test_equal_seeds_give_equal_problems() -> None:
    weights = {1: 0.5, 2: 0.5}
    assert make_problems(random.Random("a"), 20, weights) == make_problems(random.Random("a"), 20, weights)
    assert held_out_problems(7, 20, weights) == held_out_problems(7, 20, weights) != held_out_problems(8, 20, weights)
