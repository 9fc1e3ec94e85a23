"""The form of a recipe: what it shows, what comes back, and that nothing else changes."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.webapp.recipes.strategies import recipe_data
from tests.webapp.support import RECIPE
from webapp.recipes.forms import Field, Section, applied, apply, form_of, posted_of, recipe_of, stages_with_problems
from webapp.recipes.services import PRESETS
from webapp.runs.services import WrongFields, check_recipe

BASE: dict[str, Any] = tomllib.loads(RECIPE)
LIMITS = "/sandbox/limits/"


def field(pointer: str, data: Mapping[str, Any] = BASE, **shown: Any) -> Field:
    return next(each for section in form_of(data, **shown) for each in section.fields if each.pointer == pointer)


def section(pointer: str, data: Mapping[str, Any] = BASE, **shown: Any) -> Section:
    return next(each for each in form_of(data, **shown) if each.pointer == pointer)


def names(data: Mapping[str, Any], pointer: str) -> list[str]:
    return [each.name for each in section(pointer, data).fields]


# --- nothing changed


@pytest.mark.parametrize("preset", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.stem)
def test_a_preset_that_is_posted_unchanged_is_unchanged(preset: Path) -> None:
    data = tomllib.loads(preset.read_text())
    whole = check_recipe(data).model_dump(mode="json")
    for base in (data, whole):
        assert apply(base, posted_of(form_of(base))) == base
        assert recipe_of(base, posted_of(form_of(base))) == check_recipe(data)


@given(recipe_data())
@settings(max_examples=40)
def test_any_recipe_that_is_posted_unchanged_is_unchanged(data: dict[str, Any]) -> None:
    recipe = check_recipe(data)
    for base in (data, recipe.model_dump(mode="json"), recipe.model_dump()):
        assert apply(base, posted_of(form_of(base))) == base


@given(recipe_data())
@settings(max_examples=20)
def test_every_field_of_a_recipe_is_in_its_form(data: dict[str, Any]) -> None:
    whole = check_recipe(data).model_dump(mode="json")
    shown = {each.pointer for section in form_of(whole) for each in section.fields}
    tags = {"kind"}
    assert {pointer for pointer in leaves(whole) if pointer.rpartition("/")[2] not in tags} <= shown


def leaves(value: Any, pointer: str = "") -> list[str]:
    """Pointers to what is no object; maps and lists of values are one field each."""
    if pointer.endswith("/operations") or not isinstance(value, dict | list):
        return [pointer]
    if isinstance(value, list) and not (value and isinstance(value[0], dict)):
        return [pointer]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for key, each in items for leaf in leaves(each, f"{pointer}/{key}")]


# --- what is shown


def test_sections_follow_the_recipe() -> None:
    assert [(each.level, each.title, each.kind) for each in form_of(BASE)] == [
        (0, "Recipe", ""),
        (0, "Model", "tiny-qwen3"),
        (0, "Stage 1: sft", "sft"),
        (1, "What is trained", "all"),
        (1, "Problems", ""),
        (1, "Planted errors", ""),
        (0, "Stage 2: rl", "rl"),
        (1, "What is trained", "all"),
        (1, "Problems", "arithmetic"),
        (1, "Downsampling", "roc"),
        (1, "Stragglers", "wait"),
        (0, "Stage 3: eval", "eval"),
        (1, "Problems", "arithmetic"),
        (0, "Rollout engines", ""),
        (1, "Scheduler", "growth"),
        (0, "Sandbox", ""),
        (1, "Limits", ""),
        (0, "Scoring", ""),
        (0, "Learner", ""),
    ]


def test_every_section_and_every_field_says_what_it_is_for() -> None:
    sections = form_of(BASE)
    assert [each.pointer for each in sections if not each.help] == []
    unsaid = {each.name for section in sections for each in section.fields if not each.description}
    assert unsaid == set()


def test_a_field_carries_what_its_schema_says() -> None:
    found = field("/stages/1/keep_per_problem")
    assert (found.label, found.kind, found.text) == ("Keep per problem", "int", "2")
    assert (found.exclusive_minimum, found.default, found.changed, found.required) == (0, 8, True, False)
    assert "paper's G" in found.description


@pytest.mark.parametrize(
    ("pointer", "kind", "text"),
    [
        ("/name", "text", "sample"),
        ("/stages/0/learning_rate", "float", "0.004"),
        ("/stages/0/problems/operations", "map", "1=0.45, 2=0.4, 3=0.15"),
        ("/stages/1/betas", "list", "0.9, 0.95"),
        ("/stages/1/scale_by_informative", "bool", "true"),
        ("/stages/1/advantage_norm", "choice", "std"),
        ("/learner/zero_stage", "choice", "1"),
        ("/stages/1/downsampling/kind", "union", "roc"),
        ("/rollout/kind", "choice", "scripted"),
    ],
)
def test_a_value_is_shown_as_text_of_its_kind(pointer: str, kind: str, text: str) -> None:
    found = field(pointer)
    assert (found.kind, found.text) == (kind, text)


def test_units_stand_apart_from_labels() -> None:
    assert (field("/rollout/kv_cache_mb").label, field("/rollout/kv_cache_mb").unit) == ("KV cache", "MiB")
    assert (field(LIMITS + "wall_s").label, field(LIMITS + "wall_s").unit) == ("Wall time", "s")


def test_the_default_is_the_recipes_own_not_that_of_the_class() -> None:
    """The recipe's limits are five seconds, those of a call anywhere ten."""
    assert (field(LIMITS + "wall_s").default, field(LIMITS + "wall_s").changed) == (5, False)
    given_in_part = {**BASE, "sandbox": {"limits": {"memory_mb": 64}}}
    assert (field(LIMITS + "wall_s", given_in_part).value, field(LIMITS + "wall_s", given_in_part).changed) == (
        10,
        True,
    )


def test_choices_name_the_kinds_that_the_platform_has() -> None:
    kinds = [each.value for each in field("/stages/1/downsampling/kind").choices]
    assert kinds == ["roc", "uniform", "balanced", "keep_all"]
    assert [each.value for each in field("/model/kind").choices] == ["tiny-qwen3", "folder"]
    assert "kind" not in names(BASE, "/stages/1/problems"), "files are refused here: a dataset is chosen instead"


def test_what_was_typed_and_what_is_wrong_with_it_is_shown_again() -> None:
    shown = field("/seed", posted={"/seed": "abc"}, errors={"/seed": "expected a whole number"})
    assert (shown.text, shown.error, shown.value) == ("abc", "expected a whole number", 0)
    assert section("/model", errors={"/model": "no"}).error == "no"


def test_stages_that_may_take_a_dataset_are_known() -> None:
    assert stages_with_problems(BASE) == ["rl", "eval"]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"stages": 3, "model": [], "notes": {"a": 1}, "seed": None},
        {"stages": [3, {}, {"kind": "rl", "problems": 4, "betas": "x"}, {"kind": "none"}]},
        {"model": {"kind": ["folder"]}, "name": {"a": 1}, "rollout": {"engines": "many", "kind": 4}},
    ],
)
def test_data_that_is_no_recipe_is_shown_all_the_same(data: dict[str, Any]) -> None:
    sections = form_of(data)
    assert sections[0].title == "Recipe"
    applied(data, posted_of(sections))


# --- what was posted


@pytest.mark.parametrize(
    ("pointer", "text", "value"),
    [
        ("/seed", " 7 ", 7),
        ("/stages/0/learning_rate", "1e-3", 0.001),
        ("/stages/0/learning_rate", ".5", 0.5),
        ("/stages/0/problems/operations", "1 = 1\r\n2=0.5", {"1": 1.0, "2": 0.5}),
        ("/stages/1/betas", "0.8; 0.9", [0.8, 0.9]),
        ("/stages/1/scale_by_informative", "false", False),
        ("/stages/1/advantage_norm", "none", "none"),
        ("/notes", "one\r\n\r\n two ", ["one", "two"]),
        ("/notes", '["a\\nb"]', ["a\nb"]),
        ("/notes", "[not JSON]", ["[not JSON]"]),
    ],
)
def test_texts_become_values(pointer: str, text: str, value: Any) -> None:
    data = apply(BASE, {pointer: text})
    found: Any = data
    for part in pointer.split("/")[1:]:
        found = found[int(part) if part.isdecimal() and isinstance(found, list) else part]
    assert found == value
    assert apply(data, posted_of(form_of(data))) == data


@pytest.mark.parametrize(
    ("pointer", "text", "said"),
    [
        ("/seed", "abc", "expected a whole number, given 'abc'"),
        ("/seed", "1.0", "expected a whole number, given '1.0'"),
        ("/seed", "", "expected a whole number, given nothing"),
        ("/seed", "9" * 5000, "expected a whole number, given '999"),
        ("/seed", "٣", "expected a whole number, given '٣'"),
        ("/stages/0/learning_rate", "0,004", "expected a number such as 0.004 or 4e-3, given '0,004'"),
        ("/stages/0/learning_rate", "nan", "expected a number such as"),
        ("/stages/0/learning_rate", "1e999", "expected a finite number, given '1e999'"),
        ("/stages/0/problems/operations", "1=0,45", "expected pairs such as 1=0.45, 2=0.4, given '45'"),
        ("/stages/0/problems/operations", "1=a", "expected a number such as"),
        ("/stages/0/problems/operations", "1=1, 1=2", "expected every key once, given twice: 1"),
        ("/stages/1/scale_by_informative", "maybe", "expected true or false, given 'maybe'"),
        ("/stages/1/advantage_norm", "x", "expected one of std, none, given 'x'"),
        ("/stages/1/downsampling/kind", "x", "expected one of roc, uniform, balanced, keep_all, given 'x'"),
        ("/stages/1/learning_rat", "1", "no such field"),
        ("/stages/9/steps", "1", "no such field"),
        ("/stages/-1/steps", "1", "no such field"),
        ("/stages/1", "1", "no such field"),
        ("/stages", "1", "no such field"),
        ("/stages/1/betas/0", "1", "no such field"),
        ("/seed/x", "1", "no such field"),
    ],
)
def test_text_that_is_no_value_is_told_at_its_field(pointer: str, text: str, said: str) -> None:
    data, wrong = applied(BASE, {pointer: text})
    assert data == BASE
    assert list(wrong) == [pointer]
    assert wrong[pointer].startswith(said)


def test_everything_wrong_is_told_at_once() -> None:
    posted = {"/seed": "x", "/stages/0/steps": "0", "/stages/1/learning_rate": "-1", "/stages/1/max_turns": "0"}
    with pytest.raises(WrongFields) as caught:
        recipe_of(BASE, posted)
    assert caught.value.errors.keys() == posted.keys()


def test_what_belongs_to_the_page_is_passed_over() -> None:
    assert apply(BASE, {"csrfmiddlewaretoken": "x", "name": "y", "/datasets/rl": "ds_1", "": "", "/": ""}) == BASE


def test_the_data_that_was_given_stays_as_it_was() -> None:
    before = tomllib.loads(RECIPE)
    apply(BASE, {"/stages/0/steps": "9", LIMITS + "memory_mb": "64", "/model/kind": "folder"})
    assert before == BASE


def test_a_field_of_an_object_that_was_not_given_leaves_its_other_fields_as_they_were() -> None:
    recipe = recipe_of(BASE, {LIMITS + "memory_mb": "64"})
    assert (recipe.sandbox.limits.wall_s, recipe.sandbox.limits.memory_mb) == (5, 64)


def test_tools_are_named_one_a_line() -> None:
    (field,) = [each for section in form_of(BASE) for each in section.fields if each.pointer == "/tools"]
    assert (field.kind, field.item, field.text) == ("list", "text", "python")
    assert recipe_of(BASE, {"/tools": "python\r\nmine.tools:search\r\n"}).tools == ("python", "mine.tools:search")
    with pytest.raises(WrongFields) as caught:
        recipe_of(BASE, {"/tools": "python\nno tool"})
    assert caught.value.errors.keys() == {"/tools/1"}


def test_another_kind_keeps_what_both_have_and_drops_the_rest() -> None:
    base = apply(BASE, {"/stages/1/downsampling/min_per_class": "2", "/stages/1/downsampling/eps": "0.1"})
    posted = {**posted_of(form_of(base)), "/stages/1/downsampling/kind": "uniform"}
    data = apply(base, posted)
    assert data["stages"][1]["downsampling"] == {"kind": "uniform", "min_per_class": 2}
    assert names(data, "/stages/1/downsampling") == ["kind", "min_per_class"]


def test_the_section_of_another_kind_can_be_shown_before_its_fields_are_right() -> None:
    data, wrong = applied(BASE, {**posted_of(form_of(BASE)), "/model/kind": "folder", "/seed": "x"})
    assert wrong.keys() == {"/seed"}
    assert names(data, "/model") == ["kind", "path", "context_tokens"]
    with pytest.raises(WrongFields) as caught:
        recipe_of(BASE, {"/model/kind": "folder", "/model/path": ""})
    assert caught.value.errors == {"/model/path": "is required"}


def test_a_field_that_may_be_null_is_empty_then() -> None:
    assert field("/rollout/key_variable").text == ""
    named = apply(BASE, {"/rollout/key_variable": "SERVER_KEY"})
    assert named["rollout"]["key_variable"] == "SERVER_KEY"
    assert apply(named, {"/rollout/key_variable": ""})["rollout"]["key_variable"] is None


def test_a_scheduler_is_chosen_and_the_digest_of_a_recipe_without_one_stays() -> None:
    """An old recipe that passes through the form means what it meant."""
    assert recipe_of(BASE, posted_of(form_of(BASE))).digest == check_recipe(BASE).digest
    data = apply(BASE, {"/rollout/scheduler/kind": "aimd"})
    assert names(data, "/rollout/scheduler") == ["kind", "grow", "cut", "low", "high"]
    slower = recipe_of(data, {"/rollout/scheduler/grow": "1.1"})
    assert slower.rollout.scheduler.model_dump() == {"kind": "aimd", "grow": 1.1, "cut": 0.8, "low": 0.6, "high": 0.8}
    assert slower.digest != check_recipe(BASE).digest


def test_servers_of_others_are_named_one_a_line() -> None:
    posted = {"/rollout/kind": "sglang", "/rollout/urls": "http://gpu-1:30000\r\nhttp://gpu-2:30000\r\n"}
    assert recipe_of(BASE, posted).rollout.urls == ("http://gpu-1:30000", "http://gpu-2:30000")
    with pytest.raises(WrongFields) as caught:
        recipe_of(BASE, {"/rollout/kind": "sglang"})
    assert caught.value.errors == {"/rollout/kind": "kind sglang wants at least one of urls"}
