"""``OpenAiEngine`` against what vLLM 0.32 really answered, and against stub servers that know more or less."""

import json
import random
from pathlib import Path

import pytest
from aiohttp import web

from engine.rollout.base import EngineCapacity, EngineUnavailable, FinishReason, GenerateRequest, Generation
from engine.rollout.openai_engine import OpenAiEngine, read_ids, read_text, tells_ids
from engine.rollout.scripted_engine import LOGPROB, ScriptedEngine
from tests.engine.rollout.stub_servers import OpenAi, recorded, replay, said

STOP = ord("!")
PROMPT = [ord(letter) for letter in "say "]
REQUEST = GenerateRequest(PROMPT, max_tokens=6, temperature=0.7, stop_token_ids=(STOP,))


class Letters:
    """A tokenizer: a token a letter."""

    def policy_text(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids) -> str:
        return "".join(map(chr, ids))


class Halves(Letters):
    """A tokenizer that needs twice as many tokens as the server's."""

    def policy_text(self, text: str) -> list[int]:
        return [ord(letter) for letter in text for _ in range(2)]


def greeting(prompt: list[int], version: int, source: random.Random) -> list[int]:
    return [ord(letter) for letter in "hello! and more"]


@pytest.fixture
async def start():
    """An engine that has been started on a stub server, and the server."""
    started = []

    async def begin(server, codec=None, **settings):
        await server.start()
        settings = {"served_model": "policy", "max_model_tokens": 512, "start_timeout_s": 5, **settings}
        engine = OpenAiEngine("o0", url=server.url, text=codec or Letters(), **settings)
        started.append((engine, server))
        await engine.start()
        return engine

    yield begin
    for engine, server in started:
        await engine.close()
        await server.stop()


def stub(**settings) -> OpenAi:
    return OpenAi(ScriptedEngine("behind", greeting), decode=Letters().decode, **settings)


# --- what vLLM 0.32 answered ---


@pytest.mark.parametrize("name", ["vllm/completions_ids", "vllm/completions_ids_without_tokenizer"])
def test_vllm_tells_ids_and_log_probabilities_with_and_without_a_tokenizer(name) -> None:
    made = read_ids(said(name))
    choice = recorded(name)["answer"]["choices"][0]
    assert made == Generation(choice["token_ids"], choice["logprobs"]["token_logprobs"], FinishReason.length, 0)
    assert len(made.ids) == len(made.logprobs) == 6
    assert tells_ids(said(name))


def test_vllms_stop_token_is_among_the_ids() -> None:
    made = read_ids(said("vllm/completions_ids_stop"))
    stop = recorded("vllm/completions_ids_stop")["answer"]["choices"][0]["stop_reason"]
    assert (made.ids[-1], made.finish) == (stop, FinishReason.stop)


def test_vllm_without_being_asked_for_ids_tells_text() -> None:
    assert not tells_ids(said("vllm/completions_text"))
    made = read_text(said("vllm/completions_text"), GenerateRequest([1], 200, 1.0, (STOP,)), Letters())
    assert Letters().decode(made.ids) == recorded("vllm/completions_text")["answer"]["choices"][0]["text"]
    assert (made.logprobs, made.finish) == (None, FinishReason.length)


def test_a_server_without_tokenizer_has_no_text() -> None:
    with pytest.raises(ValueError, match="it has no tokenizer"):
        read_text(said("vllm/completions_text_without_tokenizer"), REQUEST, Letters())


# --- servers ---


async def test_one_that_knows_vllms_words_is_asked_in_them(start) -> None:
    server = stub()
    engine = await start(server)
    made = await engine.generate(REQUEST)
    assert made == Generation([ord(c) for c in "hello!"], [LOGPROB] * 6, FinishReason.stop, 0)
    assert engine.tells_logprobs
    assert server.requests("/v1/completions")[-1] == {
        "model": "policy",
        "prompt": PROMPT,
        "max_tokens": 6,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": 1,
        "stop_token_ids": [STOP],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


async def test_one_that_knows_openais_only_is_asked_for_text(start) -> None:
    server = stub(plain=True)
    engine = await start(server)
    made = await engine.generate(REQUEST)
    assert made == Generation([ord(c) for c in "hello!"], None, FinishReason.stop, 0), "the end mark is put back"
    assert not engine.tells_logprobs
    assert server.requests("/v1/completions")[-1] == {
        "model": "policy",
        "prompt": PROMPT,
        "max_tokens": 6,
        "temperature": 0.7,
        "top_p": 1.0,
        "stop": ["!"],
    }


async def test_a_cut_text_says_length(start) -> None:
    engine = await start(stub(plain=True))
    made = await engine.generate(GenerateRequest(PROMPT, 3, 0.7, (STOP,)))
    assert (Letters().decode(made.ids), made.finish) == ("hel", FinishReason.length)


async def test_text_that_our_tokenizer_makes_longer_is_cut(start) -> None:
    engine = await start(stub(plain=True), codec=Halves())
    made = await engine.generate(REQUEST)
    assert (Letters().decode(made.ids), made.finish) == ("hheell", FinishReason.length)


async def test_ids_without_log_probabilities_say_so(start, monkeypatch) -> None:
    server = stub()
    told = server._ids

    async def without(body):
        answer = json.loads((await told(body)).text)
        answer["choices"][0]["logprobs"] = None
        return web.json_response(answer)

    monkeypatch.setattr(server, "_ids", without)
    engine = await start(server)
    assert (await engine.generate(REQUEST)).logprobs is None
    assert not engine.tells_logprobs


async def test_a_model_that_the_server_does_not_have_is_named_at_the_start(start, monkeypatch) -> None:
    server = stub()

    async def unknown(body):
        return replay("vllm/refused_model")

    monkeypatch.setattr(server, "_ids", unknown)
    with pytest.raises(EngineUnavailable, match="The model `nobody` does not exist"):
        await start(server, served_model="nobody")


async def test_a_turn_over_the_servers_own_context_is_our_mistake(start, monkeypatch) -> None:
    server = stub()
    engine = await start(server)

    async def refused(body):
        return replay("vllm/refused_too_long")

    monkeypatch.setattr(server, "_ids", refused)
    with pytest.raises(ValueError, match="cannot be greater than max_model_len=512"):
        await engine.generate(REQUEST)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": None}, "list of token ids"),
        ({"token_ids": [1, 2]}, "2 tokens with 6"),
        ({"finish_reason": "content_filter"}, "content_filter"),
        ({"finish_reason": None}, "None"),
        ({"logprobs": {"token_logprobs": [None] * 6}}, "finite"),
        ({"logprobs": {}}, "token_logprobs"),
    ],
)
def test_what_is_missing_or_odd_cannot_be_read(change, message) -> None:
    answer = recorded("vllm/completions_ids")["answer"]
    answer["choices"][0] |= change
    with pytest.raises((ValueError, KeyError), match=message):
        read_ids(json.dumps(answer))


async def test_it_takes_no_weights_and_says_so(start) -> None:
    engine = await start(stub())
    assert (engine.takes_weights, engine.receiver(), await engine.weight_version()) == (False, None, 0)
    await engine.load_weights(Path("anywhere"), 0)
    with pytest.raises(ValueError, match="takes no new weights: version 1"):
        await engine.load_weights(Path("anywhere"), 1)


async def test_only_the_number_in_flight_is_bounded(start) -> None:
    engine = await start(stub(), max_running=4, max_model_tokens=500)
    assert await engine.capacity() == EngineCapacity(4 * 32 + 1, 16, 500)
    assert await engine.metrics() == {}


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:1", "http://a:1/v1"),
        ("http://a:1/", "http://a:1/v1"),
        ("https://a/openai/v1/", "https://a/openai/v1"),
    ],
)
def test_the_url_is_an_sdks_base_url(url, base) -> None:
    engine = OpenAiEngine("o0", url=url, served_model="m", text=Letters(), max_model_tokens=9)
    assert engine._client._url == base


async def test_a_dead_server_is_no_answer(start) -> None:
    server = stub()
    engine = await start(server)
    await server.stop()
    with pytest.raises(EngineUnavailable, match="/completions: ClientConnectorError"):
        await engine.generate(REQUEST)
