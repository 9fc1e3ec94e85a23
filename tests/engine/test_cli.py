"""The command line with good and with bad input: what it says and how it exits. Nothing heavy is started."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from engine import cli
from engine.cli import app
from engine.sink.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "engine" / "recipes"
DOCS = ROOT / "docs" / "examples"
GROUP = DOCS / "roc-group.json"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("name", sorted(path.name for path in RECIPES.glob("*.toml")))
def test_every_shipped_recipe_is_good(name: str) -> None:
    result = call("check", RECIPES / name)
    assert result.exit_code == 0, result.output
    assert "good" in result.output


def test_check_names_every_wrong_field(tmp_path: Path) -> None:
    recipe = tmp_path / "wrong.toml"
    recipe.write_text(
        'name = "x"\n[model]\nkind = "gpt"\n[[stages]]\nname = "rl"\nkind = "rl"\nsteps = 0\ntemprature = 1.0\n'
    )
    result = call("check", recipe)
    assert result.exit_code == 2
    for expected in ("'gpt'", "'tiny-qwen3', 'folder'", "steps", "greater than 0", "temprature", "max_response_tokens"):
        assert expected in result.output


def test_a_model_folder_that_is_none_is_named(tmp_path: Path) -> None:
    recipe = tmp_path / "wrong.toml"
    recipe.write_text(
        'name = "x"\n[model]\nkind = "folder"\npath = "nowhere"\n'
        '[[stages]]\nname = "e"\nkind = "eval"\nmax_response_tokens = 160\n'
    )
    result = call("check", recipe)
    assert result.exit_code == 2
    assert str(tmp_path / "nowhere") in result.output
    assert "config.json" in result.output


@pytest.mark.parametrize(
    ("text", "expected"), [("name = ", "is not TOML"), ("name = 'x'\n\x00", "is not TOML"), (None, "cannot be read")]
)
def test_a_file_that_is_no_recipe(tmp_path: Path, text: str | None, expected: str) -> None:
    recipe = tmp_path / "recipe.toml"
    if text is not None:
        recipe.write_text(text)
    result = call("check", recipe)
    assert result.exit_code == 2
    assert expected in result.output


def test_a_full_out_folder_is_refused_without_resume(tmp_path: Path) -> None:
    (tmp_path / "something").write_text("precious")
    result = call("run", RECIPES / "smoke.toml", "--out", tmp_path)
    assert result.exit_code == 2
    assert "--resume" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, command: str) -> None:
    result = call(command, tmp_path)
    assert result.exit_code == 2
    assert "no run folder" in result.output


@pytest.mark.parametrize(
    ("name", "value", "missing"),
    [
        ("STARLOOM_PLATFORM_URL", "http://127.0.0.1:1", "STARLOOM_RUN_TOKEN"),
        ("STARLOOM_RUN_TOKEN", "slr_x", "STARLOOM_PLATFORM_URL"),
    ],
)
def test_half_a_platform_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, missing: str
) -> None:
    monkeypatch.setenv(name, value)
    result = call("run", RECIPES / "smoke.toml", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert f"{name} is set and {missing} is not" in result.output
    assert not list((tmp_path / "run" / "attempts").iterdir())


def test_runs_of_the_command_line_have_ids_like_those_of_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "go", lambda folder, sandbox, flush_s: None)
    assert call("run", RECIPES / "smoke.toml", "--out", tmp_path / "run").exit_code == 0
    assert re.fullmatch("run_[0-9a-hjkmnp-tv-z]{26}", RunFolder.open(tmp_path / "run").job.run_id)


@pytest.mark.parametrize("arguments", [["--sandbox", "unix:/a.sock"], []])
def test_a_sandbox_is_named_by_option_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setenv("STARLOOM_SANDBOX", "unix:/a.sock" if not arguments else "unix:/other.sock")
    given: list[str | None] = []
    monkeypatch.setattr(cli, "go", lambda folder, sandbox, flush_s: given.append(sandbox))
    assert call("run", RECIPES / "smoke.toml", "--out", tmp_path / "run", *arguments).exit_code == 0
    assert call("resume", tmp_path / "run", *arguments).exit_code == 0
    assert given == ["unix:/a.sock"] * 2


def test_what_is_no_sandbox_is_refused_before_anything_starts(tmp_path: Path) -> None:
    result = call("run", RECIPES / "smoke.toml", "--out", tmp_path / "run", "--sandbox", "ftp://host")
    assert result.exit_code == 2
    assert "valkey+unix:///path" in result.output
    assert not (tmp_path / "run").exists()


def with_tools(path: Path, *tools: str) -> Path:
    """A recipe that evaluates with these tools."""
    text = (DOCS / "own_tool.toml").read_text("utf-8")
    path.write_text(re.sub(r"(?m)^tools = .*$", f"tools = {json.dumps(tools)}", text))
    return path


def test_a_tool_of_a_users_own_is_part_of_a_good_recipe() -> None:
    result = call("check", DOCS / "own_tool.toml")
    assert result.exit_code == 0, result.output


def test_check_imports_tools_and_names_the_wrong_ones(tmp_path: Path) -> None:
    result = call("check", with_tools(tmp_path / "r.toml", "python", "no_such_module:Tool", "os:getcwd"))
    assert result.exit_code == 2
    assert "tools.1: no_such_module:Tool: cannot be imported: ModuleNotFoundError" in result.output
    assert "tools.2: os:getcwd: expected a tool" in result.output


def test_a_run_with_a_wrong_tool_makes_no_folder(tmp_path: Path) -> None:
    result = call("run", with_tools(tmp_path / "r.toml", "no_such_module:Tool"), "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_selection_is_explained() -> None:
    result = call("explain-roc", GROUP)
    assert result.exit_code == 0, result.output
    assert "Quota of wrong ones: floor(13 x 16 / 32 = 6.5) = 6." in result.output
    assert "Kept: 0, 6, 9, 10, 12, 14, 18, 19, 21, 22, 23, 24, 26, 29, 30, 31" in result.output


def test_a_selection_is_explained_to_programs_with_a_what_if() -> None:
    result = call(
        "explain-roc", GROUP, "--set", "min_per_class=0", "--set", "mode=sorted", "--set", "eps=0.1", "--json"
    )
    assert result.exit_code == 0, result.output
    other = json.loads(result.stdout)["what_if"]["record"]
    assert other["rule"] == {"kind": "roc", "mode": "sorted", "min_per_class": 0, "eps": 0.1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "eps=small"], "eps: expected a number, got 'small'"),
        (["--set", "eps"], "--set 'eps': expected name=value"),
        (["--set", "luck=1"], "'luck': roc has no such setting"),
        (["--group", "another"], "has no group 'another'"),
    ],
)
def test_a_what_if_that_makes_no_sense_is_refused(arguments: list[str], said: str) -> None:
    result = call("explain-roc", GROUP, *arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_a_group_file_with_a_wrong_field_is_refused_and_the_field_named(tmp_path: Path) -> None:
    group = tmp_path / "group.json"
    group.write_text(GROUP.read_text("utf-8").replace('"calls": 4', '"calls": "\\u001b[2J"', 1))
    result = call("explain-roc", group)
    assert result.exit_code == 2
    assert re.search(r"candidates\[\d+\]\.calls: expected a whole number, got '\\x1b\[2J'", result.output)


def test_a_record_that_contradicts_itself_is_told(tmp_path: Path) -> None:
    plain = json.loads(GROUP.read_text("utf-8"))
    plain["selection"]["kept"] = [1, 2, 3]
    group = tmp_path / "group.json"
    group.write_text(json.dumps(plain))
    result = call("explain-roc", group)
    assert result.exit_code == 1
    assert "kept: stored (1, 2, 3), recomputed (0, 6, 9" in result.output
