"""What a recipe says of weights reaches the engines: the way they come by, and their number format."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.contract.job import Recipe
from engine.rollout.engine_factory import make_engine
from engine.sink.run_folder import RunFolder
from engine.stages.rollouts import make_link
from engine.weights.broadcast_link import BroadcastLink
from engine.weights.file_link import FileLink


def recipe(**rollout: object) -> Recipe:
    stages = [{"kind": "eval", "name": "eval", "max_response_tokens": 64}]
    return Recipe.model_validate({"name": "r", "model": {"kind": "tiny-qwen3"}, "stages": stages, "rollout": rollout})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path)
    made.model.mkdir()
    return made


@pytest.mark.parametrize(("weights", "kind"), [("broadcast", BroadcastLink), ("file", FileLink)])
async def test_the_recipe_names_the_way(folder, weights, kind) -> None:
    link = make_link(recipe(weights=weights), folder, SimpleNamespace(), SimpleNamespace())
    assert type(link) is kind
    await link.close()


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_the_recipe_names_the_number_format(folder, precision, dtype) -> None:
    command = make_engine(recipe(precision=precision), folder, SimpleNamespace(), 0).command()
    assert command[command.index("--dtype") + 1] == dtype
