"""The endpoint: answers as OpenAI's clients expect them, tools inside, failures that say so, nothing left behind."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.data.protocol import END, answer, tool_call
from engine.serve.streaming import CHUNK_TOKENS
from sandbox.doors.http_tokens import Tokens, add_token

Until = Callable[[Callable[[], bool]], Any]


def texts(events: list[Any], index: int = 0) -> str:
    """What a plain client shows of one choice: the content of its pieces."""
    choices = [choice for event in events[:-1] for choice in event["choices"]]
    return "".join(c["delta"].get("content", "") for c in choices if c["index"] == index)


def happened(events: list[Any]) -> list[str]:
    """The kinds of pieces, in order, equal ones in a row once."""
    kinds: list[str] = []
    for event in events:
        kind = kind_of(event)
        if kinds[-1:] != [kind]:
            kinds.append(kind)
    return kinds


def kind_of(event: Any) -> str:
    if not isinstance(event, dict):
        return str(event)
    if not event.get("choices"):
        return "error" if "error" in event else "usage"
    choice = event["choices"][0]
    return choice["starloom"]["event"] if "starloom" in choice else next(iter(choice["delta"]))


# --- answers ---


async def test_an_answer_holds_the_last_turn_and_what_went_before(server: Any) -> None:
    status, body = await server.chat("call 42", model="toy")
    assert status == 200
    assert (body["object"], body["model"]) == ("chat.completion", "toy")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": answer("42")}
    assert (choice["finish_reason"], choice["starloom"]["stop_reason"]) == ("stop", "answered")
    first, last = choice["starloom"]["turns"]
    assert (first["calls"][0]["status"], first["calls"][0]["response"]) == ("ok", "42")
    assert last == {"text": answer("42"), "calls": []}


async def test_usage_counts_the_prompt_and_what_was_sampled(server: Any) -> None:
    _, body = await server.chat("call 42")
    sampled = [*server.renderer.policy_text(body["choices"][0]["starloom"]["turns"][0]["text"]), server.renderer.end_id]
    sampled += [*server.renderer.policy_text(answer("42")), server.renderer.end_id]
    prompt = len(server.renderer.prompt("call 42"))
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": len(sampled),
        "total_tokens": prompt + len(sampled),
    }
    assert body["choices"][0]["starloom"]["response_tokens"] > len(sampled)


async def test_a_conversation_reaches_the_engine_as_one_prompt(server: Any) -> None:
    said = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "call 1"},
        {"role": "assistant", "content": "<tool_call>"},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": answer("1")},
        {"role": "user", "content": "and now?"},
    ]
    _, body = await server.chat(said)
    assert body["choices"][0]["message"]["content"] == "and now?"
    prompt = server.renderer.decode(server.requests[0].prompt_ids)
    assert "be brief" in prompt
    assert "<tool_response>1</tool_response>" in prompt
    assert prompt.endswith(f"{answer('1')}{END}\n<|im_start|>user\nand now?{END}\n<|im_start|>assistant\n")


async def test_control_tokens_in_a_message_stay_text(server: Any) -> None:
    await server.chat(f"a {END} b <tool_call> c")
    ids = server.requests[0].prompt_ids
    assert f"a {END} b <tool_call> c" in server.renderer.decode(ids)
    assert list(ids).count(server.renderer.end_id) == 2  # of the system's message and of the user's


async def test_several_answers_at_once(server: Any) -> None:
    _, body = await server.chat("hello", n=3)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert {request.replica for request in server.requests} == {0, 1, 2}


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_a_limit_cuts_the_answer(server: Any, field: str) -> None:
    _, body = await server.chat("0123456789", **{field: 4})
    assert body["choices"][0]["message"]["content"] == "0123"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 4


async def test_the_last_turn_allowed_ends_for_length(opening: Any) -> None:
    async with opening(max_turns=1) as server:
        _, body = await server.chat("call 42")
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["starloom"]["stop_reason"] == "max_turns"


@pytest.mark.parametrize("stop", ["45", ["x", "45", "78"]])
async def test_an_answer_ends_before_a_stop_sequence(server: Any, stop: Any) -> None:
    _, body = await server.chat("0123456789", stop=stop)
    assert (body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]) == ("0123", "stop")
    events = await server.stream("0123456789", stop=stop)
    assert texts(events) == "0123"
    assert events[-2]["choices"][0]["starloom"]["content"] == "0123"


async def test_temperature_reaches_the_engine(server: Any) -> None:
    await server.chat("hello", temperature=0)
    await server.chat("hello")
    assert [request.temperature for request in server.requests] == [0, 1]


# --- streams ---


async def test_a_stream_tells_everything_in_the_order_in_which_it_happens(server: Any) -> None:
    events = await server.stream("call 42", stream_options={"include_usage": True})
    assert happened(events) == ["role", "content", "calls", "results", "content", "finished", "usage", "[DONE]"]
    assert texts(events) == f"<reason>é漢🙂</reason>{tool_call('42')}{answer('42')}"
    assert len({event["id"] for event in events[:-1]}) == 1
    assert all(event["object"] == "chat.completion.chunk" for event in events[:-1])
    assert [event["choices"][0]["finish_reason"] for event in events[:-2]][-2:] == [None, "stop"]
    assert events[-2]["usage"]["completion_tokens"] > 0


async def test_a_stream_comes_a_few_tokens_at_a_time(server: Any) -> None:
    await server.stream("call 42")
    assert {request.max_tokens for request in server.requests} == {CHUNK_TOKENS}
    whole = [len(request.prompt_ids) for request in server.requests]
    assert whole == sorted(whole)


async def test_calls_of_one_turn_are_told_together_before_any_result(server: Any) -> None:
    events = await server.stream("twice 7")
    news = [event["choices"][0]["starloom"] for event in events[:-1] if "starloom" in event["choices"][0]]
    assert [each["event"] for each in news] == ["calls", "results", "finished"]
    assert [call["arguments"]["code"] for call in news[0]["calls"]] == ["7", "7"]
    assert [result["response"] for result in news[1]["results"]] == ["7", "7"]
    assert news[2]["content"] == answer("77")


async def test_a_call_is_told_while_it_runs(server: Any) -> None:
    async with server.asked("POST", "/v1/chat/completions", server.body("call hang", stream=True)) as response:
        told = b""
        while b'"event": "calls"' not in told:
            told += await response.content.readany()
        assert server.sandbox.running == 1
        assert b"results" not in told


async def test_a_call_that_cannot_be_read_is_told_with_its_error(server: Any) -> None:
    events = await server.stream("<tool_call>{</tool_call>", max_tokens=40)
    news = [event["choices"][0]["starloom"] for event in events[:-1] if "starloom" in event["choices"][0]]
    assert news[0]["calls"][0]["name"] == ""
    assert news[0]["calls"][0]["error"]
    assert news[1]["results"][0]["status"] == "parse_error"


async def test_streams_of_several_answers_are_told_apart(server: Any) -> None:
    events = await server.stream("hello", n=2)
    assert [texts(events, index) for index in (0, 1)] == ["hello", "hello"]
    assert sum(kind_of(event) == "finished" for event in events) == 2


# --- failures ---

ERRORS = [
    ("GET", "/v1/nothing", b"", {}, 404, "not_found"),
    ("GET", "/v1/chat/completions", b"", {}, 405, None),
    ("POST", "/v1/chat/completions", b"{", {}, 400, "invalid_json"),
    ("POST", "/v1/chat/completions", b"{}", {"Content-Type": "text/plain"}, 415, None),
    ("POST", "/v1/chat/completions", b" " * ((8 << 20) + 1), {}, 413, "request_too_large"),
    (
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}], "model": "gpt"},
        {},
        404,
        "model_not_found",
    ),
    ("GET", "/v1/models", b"", {"Host": "evil.example"}, 403, "forbidden_host"),
]


@pytest.mark.parametrize(("method", "path", "body", "headers", "status", "code"), ERRORS)
async def test_errors_have_openais_form(
    server: Any, method: str, path: str, body: Any, headers: dict[str, str], status: int, code: str | None
) -> None:
    async with server.asked(method, path, body or None, **headers) as response:
        assert response.status == status
        told = (await response.json())["error"]
    assert set(told) == {"message", "type", "param", "code"}
    assert (told["type"], told["code"]) == ("invalid_request_error", code)


@pytest.mark.parametrize("length", [1_100, 300_000])
async def test_a_prompt_longer_than_the_context_is_refused(server: Any, length: int) -> None:
    status, body = await server.chat("7" * length)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "messages")
    assert not server.requests


async def test_a_sandbox_that_fails_is_no_answer(server: Any) -> None:
    async with server.asked("POST", "/v1/chat/completions", server.body("call down")) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "5")
        told = await response.text()
    assert '"server_error"' in told
    assert "/secret/place" not in told
    assert len(server.sandbox.requests) == 2  # it was tried again


async def test_a_stream_that_breaks_off_says_so_and_is_not_begun_anew(server: Any) -> None:
    events = await server.stream("call down")
    assert happened(events) == ["role", "content", "calls", "error"]
    assert events[-1]["error"]["type"] == "server_error"
    assert len(server.sandbox.requests) == 1


async def test_without_an_engine_nothing_is_answered(server: Any, until: Until) -> None:
    server.engine.revivable = False
    server.engine.die()
    assert (await server.chat("hello"))[0] == 503
    async with server.asked("GET", "/health") as response:
        assert response.status == 503
    async with server.asked("POST", "/v1/chat/completions", server.body("hello", stream=True)) as response:
        assert response.status == 503


async def test_a_full_queue_turns_away_at_once(opening: Any, until: Until) -> None:
    async with opening(queue=2) as server:
        server.free.clear()
        waiting = asyncio.ensure_future(server.chat("hello", n=2))
        await until(lambda: len(server.requests) == 2)
        async with server.asked("POST", "/v1/chat/completions", server.body("hello")) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
            assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
        server.free.set()
        assert (await waiting)[0] == 200
        assert (await server.chat("hello"))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_leaves_nothing_in_the_engine(server: Any, until: Until, stream: bool) -> None:
    server.free.clear()
    asking = asyncio.ensure_future(server.chat("hello", stream=stream))
    await until(lambda: bool(server.requests))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: server.pool.scheduler.in_flight == 0)
    assert (await server.engine.metrics())["running"] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_leaves_nothing_in_the_sandbox(server: Any, until: Until, stream: bool) -> None:
    asking = asyncio.ensure_future(server.chat("call hang", stream=stream))
    await server.sandbox.began.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: server.sandbox.running == 0 and server.pool.scheduler.in_flight == 0)


# --- who comes in, and the rest ---


async def test_with_tokens_only_who_has_one_comes_in(opening: Any, tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens", "ada")
    async with opening(tokens=Tokens(tmp_path / "tokens")) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token}"}):
            async with server.asked("GET", "/v1/models", **headers) as response:
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert (await response.json())["error"]["code"] == "invalid_api_key"
        async with server.asked("GET", "/v1/models", Authorization=f"Bearer {token}") as response:
            assert response.status == 200
        for path in ("/", "/health"):
            async with server.asked("GET", path) as response:
                assert response.status == 200


async def test_the_model_is_told_with_its_tools_and_limits(server: Any) -> None:
    async with server.asked("GET", "/v1/models") as response:
        (model,) = (await response.json())["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("toy", "model", 1024)
    assert [tool["name"] for tool in model["starloom"]["tools"]] == ["execute_python_code_with_standard_io"]


async def test_the_page_runs_its_own_script_only(server: Any) -> None:
    async with server.asked("GET", "/") as response:
        policy, page = response.headers["Content-Security-Policy"], await response.text()
    assert policy.startswith("default-src 'none'; ")
    assert "script-src 'sha256-" in policy
    assert not [
        way for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "http") if way in page
    ]


async def test_openais_own_client_is_served(server: Any) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}v1", api_key="none", max_retries=0)
    ask: Any = {"model": "toy", "messages": [{"role": "user", "content": "call 42"}]}
    made = await client.chat.completions.create(**ask)
    assert made.choices[0].message.content == answer("42")
    ask["messages"] += [made.choices[0].message, {"role": "user", "content": "more"}]
    pieces = [piece async for piece in await client.chat.completions.create(**ask, stream=True)]
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "more"
    with pytest.raises(openai.BadRequestError, match="top_p: only 1 is supported"):
        await client.chat.completions.create(**ask, top_p=0.5)
    await client.close()
