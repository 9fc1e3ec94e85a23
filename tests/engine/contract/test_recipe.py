"""Recipes and jobs: every wrong field is named, what is accepted has one digest."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.contract.job import JobSpec, Recipe, RecipeError, describe, load_recipe

ROOT = Path(__file__).parents[3]


def problems(recipe: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as error:
        Recipe.model_validate(recipe)
    return describe(error.value)


def test_the_smallest_recipe_is_accepted(recipe: dict[str, Any]) -> None:
    assert [stage.kind for stage in Recipe.model_validate(recipe).stages] == ["sft", "rl", "eval"]


def test_all_wrong_fields_are_named_at_once(recipe: dict[str, Any]) -> None:
    recipe["seed"] = -1
    recipe["model"]["layers"] = 0
    recipe["stages"][1]["clip_low"] = 2
    recipe["rollout"] = {"engine": 2}
    del recipe["stages"][0]["steps"]
    found = "\n".join(problems(recipe))
    for place in (
        "seed:",
        "model.tiny-qwen3.layers:",
        "stages.0.sft.steps: Field required",
        "stages.1.rl.clip_low:",
        "rollout.engine: Extra inputs are not permitted",
    ):
        assert place in found


def test_a_wrong_value_is_shown(recipe: dict[str, Any]) -> None:
    recipe["seed"] = "many"
    assert problems(recipe) == [
        "seed: Input should be a valid integer, unable to parse string as an integer (given: 'many')"
    ]


@pytest.mark.parametrize(
    ("place", "known"),
    [
        (("model",), ["'tiny-qwen3'", "'folder'"]),
        (("stages", 1), ["'sft'", "'rl'", "'eval'"]),
        (("stages", 1, "downsampling"), ["'roc'", "'uniform'", "'keep_all'"]),
    ],
)
def test_an_unknown_kind_lists_the_known_ones(recipe: dict[str, Any], place: tuple[Any, ...], known: list[str]) -> None:
    recipe["stages"][1]["downsampling"] = {"kind": "roc"}
    at: Any = recipe
    for step in place:
        at = at[step]
    at["kind"] = "gpt-9"
    (line,) = problems(recipe)
    assert "gpt-9" in line
    assert all(kind in line for kind in known)


def test_stage_names_are_unique(recipe: dict[str, Any]) -> None:
    recipe["stages"][2]["name"] = "rl-1"
    assert problems(recipe) == ["recipe: Value error, stage names must be unique, given twice: rl-1"]


@pytest.mark.parametrize("name", ["RL", "../up", "", "a/b", "-x", "x" * 42])
def test_stage_names_are_safe_as_folders(recipe: dict[str, Any], name: str) -> None:
    recipe["stages"][0]["name"] = name
    assert "stages.0.sft.name" in problems(recipe)[0]


@pytest.mark.parametrize(
    ("stage", "field"), [(0, "max_tokens"), (1, "max_response_tokens"), (2, "max_response_tokens")]
)
def test_what_does_not_fit_the_context_is_refused(recipe: dict[str, Any], stage: int, field: str) -> None:
    recipe["stages"][stage][field] = 513
    (line,) = problems(recipe)
    assert f"stage {recipe['stages'][stage]['name']}: 513 tokens do not fit context_tokens 512" in line


def test_keeping_more_than_is_sampled_is_refused(recipe: dict[str, Any]) -> None:
    recipe["stages"][1] |= {"rollouts_per_problem": 4, "keep_per_problem": 8}
    assert "keep_per_problem 8 > rollouts_per_problem 4" in problems(recipe)[0]


def test_the_digest_is_of_the_meaning_not_of_the_spelling(recipe: dict[str, Any]) -> None:
    digest = Recipe.model_validate(recipe).digest
    spelled_out = json.loads(json.dumps(recipe | {"seed": 0}))
    reordered = dict(reversed(list(spelled_out.items())))
    assert Recipe.model_validate(reordered).digest == digest
    assert Recipe.model_validate(recipe | {"seed": 1}).digest != digest


def test_a_recipe_that_says_nothing_new_keeps_the_digest_of_older_engines(recipe: dict[str, Any]) -> None:
    """Their digest is over all fields but those that they did not have."""
    old = Recipe.model_validate(recipe)
    younger = {
        "tools": True,
        "scoring": True,
        "rollout": {"urls", "served_model", "key_variable", "scheduler", "load_every_s"},
        "stages": {"__all__": {"stragglers"}},
    }
    known = json.dumps(old.model_dump(mode="json", exclude=younger), sort_keys=True, separators=(",", ":"))
    assert old.digest == hashlib.sha256(known.encode()).hexdigest()
    other = [
        recipe | {"tools": ["python", "python_session"]},
        recipe | {"scoring": {"where": "sandbox"}},
        recipe | {"rollout": {"scheduler": {"kind": "kv_cap"}}},
        recipe | {"rollout": {"load_every_s": 1}},
    ]
    assert len({old.digest, *(Recipe.model_validate(each).digest for each in other)}) == 5


def test_servers_elsewhere_want_addresses_and_our_own_have_none(recipe: dict[str, Any]) -> None:
    assert "sglang wants at least one of urls" in problems(recipe | {"rollout": {"kind": "sglang"}})[0]
    assert "vllm wants no urls" in problems(recipe | {"rollout": {"kind": "vllm", "urls": ["http://a:1"]}})[0]
    assert "'ftp://a' is no http" in problems(recipe | {"rollout": {"kind": "sglang", "urls": ["ftp://a"]}})[0]


def test_a_server_that_takes_no_weights_can_only_be_evaluated(recipe: dict[str, Any]) -> None:
    remote = {"kind": "openai", "urls": ["http://a:1/v1"]}
    assert "eval stages only" in problems(recipe | {"rollout": remote})[0]


def test_tools_are_named(recipe: dict[str, Any]) -> None:
    assert Recipe.model_validate(recipe).tools == ("python",)
    named = ["python", "python_session", "my.tools:Search"]
    assert Recipe.model_validate(recipe | {"tools": named}).tools == tuple(named)
    for wrong in ("perl", "my.tools", "my.tools:", ":Search", "../x:y", "a:b.c"):
        (line,) = problems(recipe | {"tools": ["python", wrong]})
        assert line.startswith("tools.1: ")
    assert problems(recipe | {"tools": []})[0].startswith("tools: ")


def test_what_the_sft_stage_calls_must_be_there(recipe: dict[str, Any]) -> None:
    (line,) = problems(recipe | {"tools": ["python_session"]})
    assert "tools must have python where there is an sft stage" in line
    del recipe["stages"][0]
    assert Recipe.model_validate(recipe | {"tools": ["python_session"]}).tools == ("python_session",)


def test_the_digest_is_the_same_in_another_process(recipe: dict[str, Any]) -> None:
    program = (
        "import sys; from engine.contract.job import Recipe; print(Recipe.model_validate_json(sys.argv[1]).digest)"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, json.dumps(recipe)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == Recipe.model_validate(recipe).digest


def test_a_job_survives_its_file(recipe: dict[str, Any]) -> None:
    recipe["stages"][0]["problems"] = {"operations": {1: 0.5, 3: 0.5}}
    resolved = Recipe.model_validate(recipe)
    job = JobSpec(run_id="r", created_at=0.1, digest=resolved.digest, recipe=resolved)
    again = JobSpec.model_validate_json(job.model_dump_json())
    assert again == job
    assert again.recipe.digest == job.digest


def test_a_recipe_file_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    with pytest.raises(RecipeError, match=r"recipe\.toml:\n  cannot be read: No such file"):
        load_recipe(path)
    path.write_text("name = \n")
    with pytest.raises(RecipeError, match=r"is not TOML: .*line 1"):
        load_recipe(path)
    path.write_bytes(b'name = "\xff"\n')
    with pytest.raises(RecipeError, match="is not TOML"):
        load_recipe(path)
    path.write_text('name = ""\nstages = []\n[model]\nkind = "folder"\npath = "nowhere"\n')
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    assert [line.split(":")[0] for line in error.value.problems] == ["name", "model.folder", "stages"]
