"""From a recipe to its engines."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.contract.job import Recipe
from engine.rollout.engine_factory import make_engines
from engine.rollout.openai_engine import OpenAiEngine
from engine.rollout.scripted_engine import ScriptedEngine
from engine.rollout.sglang_engine import SglangEngine
from engine.rollout.vllm_engine import VllmEngine

EVALUATION = {"name": "e", "kind": "eval", "max_response_tokens": 9}
URLS = ("http://a:1", "http://b:2/v1")


def recipe(**rollout: object) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "r",
            "model": {"kind": "tiny-qwen3", "context_tokens": 96},
            "stages": [EVALUATION],
            "rollout": rollout,
        }
    )


def engines_of(folder: Path, **rollout: object):
    run = SimpleNamespace(model=folder / "model", logs=folder / "logs", attempts=lambda: (1,))
    return make_engines(recipe(**rollout), run, SimpleNamespace())


@pytest.mark.parametrize(
    ("rollout", "kind", "names"),
    [
        ({"kind": "vllm", "engines": 2}, VllmEngine, ["vllm-0", "vllm-1"]),
        ({"kind": "scripted", "engines": 2}, ScriptedEngine, ["scripted-0", "scripted-1"]),
        ({"kind": "sglang", "urls": URLS}, SglangEngine, ["sglang-0", "sglang-1"]),
        ({"kind": "openai", "urls": URLS[:1]}, OpenAiEngine, ["openai-0"]),
    ],
)
def test_one_engine_for_each_url_or_as_many_as_the_recipe_wants(tmp_path, rollout, kind, names) -> None:
    engines = engines_of(tmp_path, **rollout)
    assert [engine.name for engine in engines] == names
    assert all(type(engine) is kind for engine in engines)


def test_each_has_its_own_server(tmp_path) -> None:
    first, second = engines_of(tmp_path, kind="sglang", urls=URLS)
    assert (first._client._url, second._client._url) == URLS
