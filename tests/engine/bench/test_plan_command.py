"""``python -m engine plan`` and ``bench``: what they say about good and bad input. Nothing is trained."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from engine.cli import app
from tests.engine.bench.conftest import QWEN3_06B

DEMO = Path(__file__).resolve().parents[3] / "engine" / "recipes" / "demo.toml"
STAGE = '[[stages]]\nname = "rl"\nkind = "rl"\nsteps = 1\nmax_response_tokens = 64\n'


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def recipe(folder: Path, model_type: str = "qwen3") -> Path:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(QWEN3_06B | {"model_type": model_type}))
    (model / "tokenizer.json").write_text("{}")
    path = folder / "recipe.toml"
    learner = '[learner]\nprecision = "bf16"\ndevice = "cuda"\n'
    path.write_text(f'name = "x"\n[model]\nkind = "folder"\npath = "model"\n{STAGE}{learner}')
    return path


def test_every_training_stage_and_the_rollout_engine_get_a_table() -> None:
    result = call("plan", DEMO)
    assert result.exit_code == 0, result.output
    for expected in ("sft: the learner's one rank", "rl-1: ", "rl-2: ", "the rollout engine", "KV cache", "Peak: "):
        assert expected in result.output


def test_a_model_folder_is_planned_from_its_config_without_weights(tmp_path: Path) -> None:
    result = call("plan", recipe(tmp_path), "--json", "--device-memory-gb", "24")
    learner, engine = json.loads(result.output)["plans"]
    assert learner["items"][0]["bytes"] == 2 * 596_049_920
    assert learner["peak_phase"] == "forward"
    assert learner["peak_bytes"] == sum(
        item["bytes"] for item in learner["items"] if item["phase"] in ("always", "forward")
    )
    assert (learner["fits"], engine["fits"]) == (False, True)


@pytest.mark.parametrize(("memory_gb", "verdict"), [("80", "Fits, "), ("24", "Does not fit: ")])
def test_a_devices_memory_gets_a_verdict(tmp_path: Path, memory_gb: str, verdict: str) -> None:
    assert verdict in call("plan", recipe(tmp_path), "--device-memory-gb", memory_gb).output


def test_a_family_that_we_cannot_count_is_refused(tmp_path: Path) -> None:
    result = call("plan", recipe(tmp_path, model_type="mamba"))
    assert result.exit_code == 2
    assert "model_type is 'mamba', expected one of qwen3, llama" in result.output


def test_a_wrong_recipe_is_refused(tmp_path: Path) -> None:
    result = call("plan", tmp_path / "nowhere.toml")
    assert result.exit_code == 2
    assert "cannot be read" in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_bench_of_a_gpu_that_is_not_there_says_that_it_was_not_run(tmp_path: Path) -> None:
    result = call("bench", "learner", "--device", "cuda", "--json", "--out", tmp_path / "bench.json")
    assert result.exit_code == 3
    expected = {"ran": False, "reason": "torch finds no GPU on this machine"}
    assert json.loads(result.stdout) == json.loads((tmp_path / "bench.json").read_text()) == expected


def test_a_bench_of_an_unknown_device_is_refused() -> None:
    result = call("bench", "learner", "--device", "tpu")
    assert result.exit_code == 2
    assert "tpu" in result.output
    assert "cuda" in result.output
