"""Every wrong field of a recipe is told under the pointer of that field, with what was expected."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webapp.recipes.pointers import parts_of, pointer_of
from webapp.runs.services import WrongFields, check_recipe

TINY = {"kind": "tiny-qwen3"}
RL = {"kind": "rl", "name": "rl", "steps": 3, "max_response_tokens": 64}
SFT = {"kind": "sft", "name": "sft", "steps": 3}
CASES = [json.loads(line) for line in Path("tests/cases/platform.jsonl").read_text().splitlines()]


def recipe(*stages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "x", "model": TINY, "stages": list(stages or (RL,)), **fields}


def rl(**fields: Any) -> dict[str, Any]:
    return recipe(SFT, RL | fields)


def errors_of(data: Any) -> dict[str, str]:
    with pytest.raises(WrongFields) as caught:
        check_recipe(data)
    return caught.value.errors


@given(st.lists(st.text() | st.integers(0, 9)))
def test_any_key_has_a_pointer_that_leads_back(parts: list[str | int]) -> None:
    expected = tuple(map(str, parts))
    assert parts_of(pointer_of(parts)) == expected or expected == ("",)


@pytest.mark.parametrize(
    ("data", "pointer", "said"),
    [
        (rl(learning_rate=-1), "/stages/1/learning_rate", "Input should be greater than 0 (given: -1)"),
        (rl(steps="many"), "/stages/1/steps", "Input should be a valid integer"),
        (rl(betas=[0.9, "x"]), "/stages/1/betas/1", "Input should be a valid number"),
        (rl(betas=[0.9]), "/stages/1/betas/1", "is required"),
        (rl(kind="rll"), "/stages/1/kind", "expected one of 'sft', 'rl', 'eval' (given: 'rll')"),
        (rl(problems={"operations": {"1": 1}}), "/stages/1/problems/kind", "field kind is missing"),
        (recipe(SFT, {"name": "x"}), "/stages/1/kind", "field kind is missing"),
        (rl(problems={"kind": "file", "path": "x"}), "/stages/1/problems/path", "files cannot be named here"),
        (recipe(model={"kind": "tiny-qwen3", "heads": 0}), "/model/heads", "Input should be greater than 0"),
        (recipe(stages=[]), "/stages", "Tuple should have at least 1 item"),
        ({"name": "x", "model": TINY}, "/stages", "is required"),
        ([], "/", "Input should be a valid dictionary"),
    ],
)
def test_a_wrong_field_is_told_at_its_place(data: Any, pointer: str, said: str) -> None:
    errors = errors_of(data)
    assert list(errors) == [pointer]
    assert errors[pointer].startswith(said)


@pytest.mark.parametrize(
    ("data", "pointer", "said"),
    [
        (rl(learning_rat=1), "/stages/1/learning_rat", "no such field; did you mean learning_rate?"),
        (rl(zzz=1), "/stages/1/zzz", "no such field"),
        (rl(rl=1), "/stages/1/rl", "no such field"),
        (rl(sft=1), "/stages/1/sft", "no such field"),
        (rl(downsampling={"kind": "roc", "roc": 1}), "/stages/1/downsampling/roc", "no such field"),
        (rl(downsampling={"kind": "roc", "folder": 1}), "/stages/1/downsampling/folder", "no such field"),
        (rl(**{"a/b~": 1}), "/stages/1/a~1b~0", "no such field"),
        (recipe(file=1), "/file", "no such field"),
    ],
)
def test_a_field_is_not_taken_for_the_kind_that_it_is_called_like(data: Any, pointer: str, said: str) -> None:
    assert errors_of(data) == {pointer: said}


def test_a_wrong_key_and_a_wrong_value_of_a_map_are_told_at_the_key() -> None:
    operations = {"7": 1, "x": 1, "2": -1}
    errors = errors_of(rl(problems={"kind": "arithmetic", "operations": operations}))
    assert errors.keys() == {f"/stages/1/problems/operations/{key}" for key in operations}


@pytest.mark.parametrize(
    ("data", "pointer", "said"),
    [
        (
            rl(keep_per_problem=9, rollouts_per_problem=8),
            "/stages/1/keep_per_problem",
            "keep_per_problem 9 > rollouts_per_problem 8",
        ),
        (rl(downsampling={"kind": "keep_all"}), "/stages/1/downsampling", "downsampling keep_all wants"),
        (recipe(model=TINY | {"hidden_size": 130}), "/model/hidden_size", "hidden_size 130 must be a multiple"),
        (rl(max_response_tokens=9999), "/stages/1/max_response_tokens", "stage rl: 9999 tokens do not fit"),
        (recipe(SFT | {"max_tokens": 9999}, RL), "/stages/0/max_tokens", "stage sft: 9999 tokens do not fit"),
        (recipe(SFT, RL, RL | {"steps": 4}), "/stages/2/name", "stage names must be unique"),
    ],
)
def test_a_rule_about_several_fields_is_told_at_one_of_them(data: Any, pointer: str, said: str) -> None:
    errors = errors_of(data)
    assert list(errors) == [pointer]
    assert errors[pointer].startswith(said)


def test_everything_wrong_is_told_at_once() -> None:
    [row] = [case for case in CASES if case["id"] == "F035"]
    given = row["input"]["config"]
    stage = RL | {
        "rollouts_per_problem": given["group_size"],
        "learning_rate": given["lr"],
        "max_turns": given["max_turns"],
        "clip_low": -given["clip_low"],
    }
    assert errors_of(recipe(stage, SFT | {"steps": 0}, model=TINY | {"layers": "x"})).keys() == {
        "/stages/0/rollouts_per_problem",
        "/stages/0/learning_rate",
        "/stages/0/max_turns",
        "/stages/0/clip_low",
        "/stages/1/steps",
        "/model/layers",
    }


@pytest.mark.parametrize(
    ("data", "pointers"),
    [
        (rl(learning_rate=float("inf")), {"/stages/1/learning_rate"}),
        (rl(problems={"kind": "arithmetic", "operations": {"1": float("inf")}}), {"/stages/1/problems/operations/1"}),
        (recipe(seed=2**53), {"/seed"}),
        (recipe(name="a\0b", notes=["\0"]), {"/name", "/notes/0"}),
        (rl(steps=2**31), {"/stages/1/steps"}),
        (recipe(SFT | {"steps": 2**30}, RL | {"steps": 2**30}), {"/stages/1/steps"}),
        (recipe({"kind": "eval", "name": "e", "max_response_tokens": 9, "count": 2**31}), {"/stages/0/count"}),
    ],
)
def test_what_postgres_or_a_browser_cannot_hold_is_refused(data: Any, pointers: set[str]) -> None:
    assert errors_of(data).keys() == pointers


def test_a_folder_elsewhere_is_refused_in_the_same_words_whether_it_exists_or_not(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).touch()
    said = [errors_of(recipe(model={"kind": "folder", "path": str(path)})) for path in (tmp_path, tmp_path / "none")]
    assert said[0] == said[1]
    assert "model folders have to lie in" in said[0]["/model/path"]


@pytest.mark.parametrize("path", ["none", "a\0b", "x" * 5000, "", "."])
def test_a_folder_that_is_none_is_told_at_its_path(path: str) -> None:
    assert errors_of(recipe(model={"kind": "folder", "path": path})).keys() == {"/model/path"}
