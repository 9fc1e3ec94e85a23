"""What a path means: a model folder as it is, a run by its newest checkpoint, its recipe's tools and limits."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.contract.events import StepFinished
from engine.contract.job import Recipe
from engine.contract.provenance import new_job
from engine.serve.checkpoints import NotServable, Wishes, find
from engine.sink.run_folder import RunFolder

PROBLEMS = {"kind": "arithmetic", "operations": {"1": 1.0}}
RECIPE = {
    "name": "tiny",
    "model": {"kind": "tiny-qwen3", "context_tokens": 384},
    "tools": ["python", "python_session"],
    "rollout": {"engines": 3, "kv_cache_mb": 99, "kind": "scripted"},
    "stages": [
        {"kind": "sft", "name": "sft", "steps": 4, "examples": 8, "problems": PROBLEMS},
        {"kind": "rl", "name": "rl", "steps": 4, "problems": PROBLEMS, "max_response_tokens": 100, "max_turns": 3},
    ],
}


@pytest.fixture
def model(tmp_path: Path, tokenizer: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tokenizer, folder)
    write(folder / "config.json", {"max_position_embeddings": 512, "dtype": "bfloat16"})
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run", new_job(Recipe.model_validate(RECIPE), "run_1"))
    folder.next_attempt()
    return folder


def write(file: Path, value: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value), encoding="utf-8")


def checkpoint(run: RunFolder, stage: str, step: int) -> Path:
    folder = run.checkpoint(1, stage, step)
    finished = StepFinished(stage=stage, step=step, metrics={}).model_dump(mode="json")
    write(folder / "state.json", {"schema": 2, "step": step, "version": step, "finished": finished, "pending": {}})
    return folder / "model"


def test_a_model_folder_is_served_as_it_is(model: Path) -> None:
    served = find(model, Wishes())
    assert (served.name, served.folder, served.tools) == ("model", model, ("python",))
    assert (served.limits.context_tokens, served.limits.max_response_tokens) == (512, 512)
    assert (served.engines.kind, served.engines.engines, served.engines.precision) == ("vllm", 1, "bf16")


def test_wishes_come_first(model: Path) -> None:
    wishes = Wishes(
        kind="scripted",
        engines=2,
        kv_cache_mb=7,
        tools=("python_session",),
        context_tokens=128,
        max_turns=2,
        max_response_tokens=64,
        tool_response_chars=1000,
    )
    served = find(model, wishes)
    assert (served.engines.kind, served.engines.engines, served.engines.kv_cache_mb) == ("scripted", 2, 7)
    assert served.tools == ("python_session",)
    limits = served.limits
    assert (limits.context_tokens, limits.max_turns, limits.max_response_tokens) == (128, 2, 64)
    assert limits.tool_response_chars == 1000


def test_the_context_is_never_longer_than_the_models(model: Path) -> None:
    assert find(model, Wishes(context_tokens=4096)).limits.context_tokens == 512


def test_a_run_is_served_by_its_newest_checkpoint_with_its_tools_and_limits(run: RunFolder) -> None:
    checkpoint(run, "sft", 4)
    checkpoint(run, "rl", 1)
    newest = checkpoint(run, "rl", 2)
    served = find(run.path, Wishes())
    assert (served.name, served.folder) == ("tiny-rl-step-00002", newest)
    assert served.tools == ("python", "python_session")
    limits = served.limits
    assert (limits.context_tokens, limits.max_response_tokens, limits.max_turns) == (384, 100, 3)
    assert (served.engines.kind, served.engines.engines, served.engines.kv_cache_mb) == ("vllm", 1, 99)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "config.json missing"),
        ("{", "is not JSON"),
        ("[]", "should hold a JSON object"),
        ("{}", "--context-tokens"),
    ],
)
def test_what_is_no_model_is_refused(model: Path, config: str | None, message: str) -> None:
    (model / "config.json").unlink()
    if config is not None:
        (model / "config.json").write_text(config)
    with pytest.raises(NotServable, match=message):
        find(model, Wishes())


def test_a_run_without_a_checkpoint_is_refused(run: RunFolder) -> None:
    with pytest.raises(NotServable, match="has no checkpoint yet"):
        find(run.path, Wishes())
