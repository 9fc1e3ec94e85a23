"""Recipes as TOML: what is written is the recipe, and reads as somebody would have written it."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from engine.contract.job import Recipe
from tests.webapp.recipes.strategies import recipe_data
from webapp.recipes.services import PRESETS, parse_toml
from webapp.recipes.toml_text import description_of, toml_of
from webapp.runs.services import check_recipe

SHORT: dict[str, Any] = {
    "name": "short",
    "model": {"kind": "tiny-qwen3"},
    "stages": [{"kind": "rl", "name": "rl", "steps": 3, "max_response_tokens": 64}],
}


@given(recipe_data())
@settings(max_examples=60)
def test_reading_what_was_written_gives_the_recipe_again(data: dict[str, Any]) -> None:
    recipe = check_recipe(data)
    assert parse_toml(toml_of(recipe)) == recipe


@pytest.mark.parametrize("preset", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_preset_says_nothing_but_what_it_chose(preset: Path) -> None:
    written = tomllib.loads(toml_of(parse_toml(preset.read_text())))
    given = tomllib.loads(preset.read_text())
    assert [stage.keys() for stage in written["stages"]] == [stage.keys() for stage in given["stages"]]
    assert written["model"] == given["model"]


def test_it_reads_as_somebody_would_have_written_it() -> None:
    data = {
        **SHORT,
        "notes": ['He said "no"\n'],
        "stages": [
            {**SHORT["stages"][0], "problems": {"kind": "arithmetic", "operations": {"2": 1}}, "learning_rate": 1e-5}
        ],
        "sandbox": {"limits": {"wall_s": 5, "cpu_s": 5, "memory_mb": 256}},
    }
    assert toml_of(Recipe.model_validate(data)) == (
        r"""name = "short"
notes = [
  "He said \"no\"\n",
]

[model]
kind = "tiny-qwen3"

[[stages]]
name = "rl"
kind = "rl"
steps = 3
learning_rate = 1e-05
max_response_tokens = 64
problems = { kind = "arithmetic", operations = { 2 = 1.0 } }

[sandbox]
limits = { wall_s = 5.0, cpu_s = 5.0, memory_mb = 256 }
"""
    )


def test_a_model_folder_is_written_with_its_path(settings: Any, tmp_path: Path) -> None:
    folder = settings.VAR.models / "tiny"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).touch()
    recipe = parse_toml(toml_of(check_recipe({**SHORT, "model": {"kind": "folder", "path": "tiny"}})))
    assert recipe.model.path == folder.resolve()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("toml", "description"),
    [
        ("", ""),
        ("name = 1\n# late", ""),
        ("# One.\n#\n# Two:\n#   goes on.\n#Three.\n\n# not this\nname = 1", "One.\n\nTwo: goes on.\nThree."),
        ("#\n# One.\n#\n", "One."),
    ],
)
def test_the_comment_at_the_top_describes_the_recipe(toml: str, description: str) -> None:
    assert description_of(toml) == description
