"""``SglangEngine`` against recorded answers and a stub server; what all engines promise, ``test_exam.py`` asks."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from engine.rollout.base import EngineCapacity, EngineUnavailable, FinishReason, GenerateRequest, Generation
from engine.rollout.scripted_engine import LOGPROB, ScriptedEngine
from engine.rollout.sglang_engine import SglangEngine, read_generation, read_metrics, read_update
from tests.engine.rollout.stub_servers import Broken, Sglang, recorded, replay, said

END, STOP = 7, 9
REQUEST = GenerateRequest([1, 2, 3], max_tokens=6, temperature=0.7, stop_token_ids=(STOP,))


def counting(prompt: list[int], version: int, source: random.Random) -> list[int]:
    """Goes on counting from the prompt's last token: 4, 5, 6, 7 (the model's own end), 8, 9 (our stop)."""
    return list(range(prompt[-1] + 1, prompt[-1] + 40))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with weights, and a file as its tokenizer."""
    (tmp_path / "model.safetensors").write_bytes(b"A")
    return tmp_path


@pytest.fixture
async def server():
    stub = Sglang(ScriptedEngine("behind", counting), end_tokens=(END,))
    await stub.start()
    yield stub
    await stub.stop()


@pytest.fixture
async def make(model):
    engines = []

    def build(url: str, **settings) -> SglangEngine:
        settings = {"model_folder": model, "max_model_tokens": 512, "start_timeout_s": 5, **settings}
        engines.append(SglangEngine("s0", url=url, **settings))
        return engines[-1]

    yield build
    for engine in engines:
        await engine.close()


# --- recorded answers ---


def test_ids_and_log_probabilities_of_a_cut_turn() -> None:
    assert read_generation(said("sglang/generate_length")) == Generation(
        [220, 8907, 811], [-0.4053, -2.7191, -0.0012], FinishReason.length, 3
    )


def test_the_stop_token_is_there_although_output_ids_lack_it() -> None:
    made = read_generation(said("sglang/generate_stop"))
    assert 151645 not in recorded("sglang/generate_stop")["answer"]["output_ids"]
    assert (made.ids[-1], made.logprobs[-1], made.finish) == (151645, -0.2231, FinishReason.stop)


def test_f097_an_abort_is_reported_as_one() -> None:
    assert read_generation(said("sglang/generate_abort")).finish is FinishReason.abort


def test_a_token_put_in_the_place_of_nan_is_no_stop() -> None:
    with pytest.raises(ValueError, match="NaN happened"):
        read_generation(said("sglang/generate_nan"))


def broken(**changes: object) -> str:
    """A recorded answer with other facts; None takes one away."""
    answer = recorded("sglang/generate_length")["answer"]
    told = {**answer["meta_info"], **changes}
    answer["meta_info"] = {name: value for name, value in told.items() if value is not None}
    return json.dumps(answer)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_token_logprobs": None}, "output_token_logprobs"),
        ({"output_token_logprobs": [[float("nan"), 220, None]], "completion_tokens": 1}, "JSONDecodeError"),
        ({"output_token_logprobs": [[None, 220, None]], "completion_tokens": 1}, "finite.*None"),
        ({"completion_tokens": 4}, "expected 4 completion tokens, got 3"),
        ({"weight_version": "default"}, "weight version that is a number, got 'default'"),
        ({"weight_version": None}, "weight_version"),
        ({"finish_reason": {"type": "stop", "matched": 5}}, "stopped by the last of 3 tokens, got 5"),
        ({"finish_reason": {"type": "tired"}}, "tired"),
        ({"finish_reason": None}, "finish_reason"),
    ],
)
async def test_what_is_missing_or_odd_is_the_servers_failure(make, changes, message) -> None:
    server = Broken({"/generate": (200, broken(**changes))})
    await server.start()
    engine = make(server.url)
    engine._client.open()
    with pytest.raises(EngineUnavailable, match=f"(?s)/generate: unreadable answer.*{message}"):
        await engine.generate(REQUEST)
    await server.stop()


def test_metrics_have_our_names() -> None:
    assert read_metrics(said("sglang/metrics")) == {
        "running": 2,
        "waiting": 1,
        "kv_usage": 0.25,
        "preemptions": 3,
        "generated_tokens": 50,
        "prefix_queries": 400,
        "prefix_hits": 200,
    }
    with pytest.raises(ValueError, match="--enable-metrics"):
        read_metrics("python_gc_objects_collected_total 1.0\n")


def test_an_update_is_taken_or_not() -> None:
    read_update(said("sglang/update_taken"))
    with pytest.raises(ValueError, match="Cannot find any model weights"):
        read_update(said("sglang/update_refused"))


# --- a server ---


async def test_a_start_waits_loads_the_model_and_asks_everything_once(server, make, model) -> None:
    engine = make(server.url)
    await engine.start()
    assert [path for path, _ in server.asked] == [
        "/health",
        "/update_weights_from_disk",
        "/generate",
        "/model_info",
        "/server_info",
        "/metrics",
    ]
    assert await engine.weight_version() == 0
    assert await engine.capacity() == EngineCapacity(1025, 16, 512)


async def test_every_parameter_of_sampling_is_said(server, make) -> None:
    engine = make(server.url)
    await engine.start()
    await engine.generate(REQUEST)
    body = server.requests("/generate")[1]
    assert body["sampling_params"] == {
        "temperature": 0.7,
        "max_new_tokens": 6,
        "stop_token_ids": [STOP],
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "n": 1,
        "stop": [],
        "ignore_eos": False,
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }
    assert {name: body[name] for name in ("input_ids", "return_logprob", "logprob_start_len", "stream")} == {
        "input_ids": [1, 2, 3],
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
    }


async def test_an_end_token_of_the_models_own_does_not_end_a_turn(server, make) -> None:
    engine = make(server.url)
    await engine.start()
    made = await engine.generate(REQUEST)
    assert (made.ids, made.finish) == ([4, 5, 6, END, 8, STOP], FinishReason.stop)
    assert made.logprobs == [LOGPROB] * 6
    assert [
        (body["input_ids"], body["sampling_params"]["max_new_tokens"]) for body in server.requests("/generate")[1:]
    ] == [
        ([1, 2, 3], 6),
        ([1, 2, 3, 4, 5, 6, END], 2),
    ]


async def test_nor_does_it_say_stop_where_the_turn_is_cut(server, make) -> None:
    engine = make(server.url)
    await engine.start()
    made = await engine.generate(GenerateRequest([1, 2, 3], 4, 0.7, (STOP,)))
    assert (made.ids, made.finish) == ([4, 5, 6, END], FinishReason.length)


async def test_new_weights_within_a_turn_spoil_it(server, make) -> None:
    engine = make(server.url)
    await engine.start()
    sampled = server.sample

    async def then_new_weights(*arguments):
        made = await sampled(*arguments)
        server.label = str(int(server.label) + 1)
        return made

    server.sample = then_new_weights
    with pytest.raises(EngineUnavailable, match="new weights within a turn"):
        await engine.generate(REQUEST)


async def test_f087_weights_and_version_come_in_one_request_that_flushes(server, make, model) -> None:
    engine = make(server.url)
    await engine.start()
    await engine.load_weights(model, 5)
    assert server.requests("/update_weights_from_disk")[-1] == {
        "model_path": str(model),
        "weight_version": "5",
        "abort_all_requests": False,
        "flush_cache": True,
    }
    assert (await engine.weight_version(), (await engine.generate(REQUEST)).version) == (5, 5)


async def test_weights_that_it_cannot_load_are_its_failure_and_not_served(server, make, tmp_path) -> None:
    engine = make(server.url)
    await engine.start()
    with pytest.raises(EngineUnavailable, match=r"(?s)answered 400.*Cannot find any model weights"):
        await engine.load_weights(tmp_path / "nowhere", 5)
    assert await engine.weight_version() == 0


async def test_a_turn_over_the_servers_own_context_is_our_mistake(server, make, monkeypatch) -> None:
    engine = make(server.url)
    await engine.start()

    async def refused(body):
        return replay("sglang/generate_refused")

    monkeypatch.setattr(server, "_generate", refused)
    with pytest.raises(ValueError, match="longer than the model's context"):
        await engine.generate(REQUEST)


@pytest.mark.parametrize("names", [("/server_info", "/model_info"), ("/get_server_info", "/get_model_info")])
async def test_older_servers_tell_of_themselves_under_other_names(make, names) -> None:
    server_info, model_info = names
    server = Broken({server_info: (200, said("sglang/server_info")), model_info: (200, said("sglang/model_info"))})
    await server.start()
    engine = make(server.url)
    engine._client.open()
    assert await engine.capacity() == EngineCapacity(1024, 16, 512)
    assert await engine.weight_version() == 3
    await server.stop()


async def test_a_server_without_metrics_is_refused_at_the_start(server, make, monkeypatch) -> None:
    async def none():
        return replay("sglang/generate_refused")

    monkeypatch.setattr(server, "_metrics", none)
    with pytest.raises(EngineUnavailable, match="/metrics answered 400"):
        await make(server.url).start()


async def test_a_server_that_is_not_there_yet_is_waited_for(server, make) -> None:
    await server.stop()
    starting = asyncio.ensure_future(make(server.url).start())
    await asyncio.sleep(0)
    assert not starting.done()
    await server.start()
    await starting


async def test_a_server_that_somebody_starts_again_is_not_the_one_that_was_started(server, make) -> None:
    engine = make(server.url)
    await engine.start()
    await server.stop()
    await server.start()
    assert await engine.weight_version() is None
    with pytest.raises(EngineUnavailable, match="weight version that is a number, got 'default'"):
        await engine.generate(REQUEST)
    with pytest.raises(EngineUnavailable, match="somebody has started the server again"):
        await engine.capacity()
    await engine.start()
    assert (await engine.generate(REQUEST)).version == 0


@pytest.mark.parametrize("path", ["/server_info", "/model_info", "/metrics"])
async def test_what_it_says_of_itself_is_read_as_strictly(make, path) -> None:
    says = {"/server_info": "sglang/server_info", "/model_info": "sglang/model_info", "/metrics": "sglang/metrics"}
    server = Broken({each: (200, said(name)) for each, name in says.items()} | {path: (200, "{}")})
    await server.start()
    engine = make(server.url)
    engine._client.open()
    with pytest.raises(EngineUnavailable, match=f"{path}: unreadable answer"):
        await asyncio.gather(engine.capacity(), engine.metrics())
    await server.stop()


async def test_closing_lets_the_server_go_on(server, make) -> None:
    engine = make(server.url)
    await engine.start()
    await engine.close()
    await engine.close()
    with pytest.raises(EngineUnavailable, match="s0 is not running"):
        await engine.generate(REQUEST)
    await engine.start()
    assert (await engine.generate(REQUEST)).ids
