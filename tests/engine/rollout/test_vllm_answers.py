"""What vLLM 0.32 really answered, read by ``VllmEngine``'s readers; and the same with something missing or odd."""

import json
from typing import Any

import pytest

from engine.rollout.answers import UNREADABLE
from engine.rollout.base import FinishReason, Generation
from engine.rollout.vllm_engine import read_cache, read_generation, read_metrics, read_version
from tests.engine.rollout.stub_servers import recorded, said


def choice() -> Any:
    return recorded("vllm/generate")["answer"]["choices"][0]


def test_a_turn() -> None:
    told = [entry["logprob"] for entry in choice()["logprobs"]["content"]]
    assert read_generation(said("vllm/generate")) == Generation(choice()["token_ids"], told, FinishReason.length, 0)


def test_load_is_told_by_our_names_and_for_the_whole_cache() -> None:
    figures = read_metrics(said("vllm/metrics"))
    assert figures.pop("kv_usage") == pytest.approx(1 / 169), "one of 169 usable blocks"
    assert figures == {
        "running": 1,
        "waiting": 0,
        "preemptions": 0,
        "generated_tokens": 112,
        "prefix_queries": 273,
        "prefix_hits": 0,
    }
    assert read_cache(said("vllm/metrics")) == (170, 128)


def test_f089_the_version_is_what_the_server_says() -> None:
    assert read_version(said("vllm/weight_info")) == 0
    assert read_version('{"weight_version": "unfinished"}') is None


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": None},
        {"token_ids": [1, 2, 3]},
        {"token_ids": [-1] * 6},
        {"logprobs": None},
        {"logprobs": {"content": [{"logprob": float("nan")}] * 6}},
        {"finish_reason": None},
        {"finish_reason": "repetition"},
        {"weight_versions": None},
        {"weight_versions": [{"version": "unfinished", "start": 0, "end": 6}]},
        {"weight_versions": [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 6}]},
    ],
)
def test_what_is_missing_or_odd_cannot_be_read(change: dict[str, Any]) -> None:
    with pytest.raises(UNREADABLE):
        read_generation(json.dumps({"choices": [choice() | change]}))
