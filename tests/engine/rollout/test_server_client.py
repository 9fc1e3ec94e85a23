"""``ServerClient``: what counts as an answer, and what is said of everything else."""

import asyncio

import pytest
from aiohttp import web

from engine.rollout import server_client
from engine.rollout.answers import from_json, log_probabilities, prometheus, token_ids
from engine.rollout.base import EngineUnavailable
from engine.rollout.server_client import Refused, ServerClient
from tests.engine.rollout.stub_servers import Broken


@pytest.fixture
async def server():
    broken = Broken()
    await broken.start()
    yield broken
    await broken.stop()


@pytest.fixture
async def client(server):
    asking = ServerClient("e0", server.url, request_timeout_s=5)
    asking.open()
    yield asking
    await asking.close()


def once_busy(status: int, headers: dict[str, str]):
    """A server that is busy the first time."""
    times: list[int] = []

    async def handle(request: web.Request) -> web.Response:
        times.append(1)
        if len(times) == 1:
            return web.Response(status=status, headers=headers)
        return web.Response(text="done")

    return handle


async def half(request: web.Request) -> web.StreamResponse:
    """Half of what was announced."""
    answer = web.StreamResponse(headers={"Content-Length": "100"})
    await answer.prepare(request)
    await answer.write(b'{"choices": [')
    request.transport.close()
    return answer


async def silent(request: web.Request) -> web.StreamResponse:
    request.transport.close()
    return web.Response()


async def hanging(request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


async def redirecting(request: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("http://127.0.0.1:1/elsewhere")


@pytest.mark.parametrize(
    ("say", "message"),
    [
        ((500, "EngineCore encountered an issue"), "/x answered 500: EngineCore"),
        ((503, "<html>Service Unavailable</html>"), "/x answered 503: <html>"),
        (half, "/x: ClientPayloadError"),
        (silent, "/x: ServerDisconnectedError"),
        (redirecting, "/x answered 302"),
    ],
)
async def test_what_is_no_answer_is_the_servers_failure(server, client, say, message) -> None:
    server.says["/x"] = say
    with pytest.raises(EngineUnavailable, match=message) as failure:
        await client.ask("POST", "/x", json={})
    assert not isinstance(failure.value, Refused)
    assert str(failure.value).startswith("engine e0: ")


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
async def test_a_request_that_is_wrong_is_refused_and_a_wrong_turn_is_our_mistake(server, client, status) -> None:
    server.says["/x"] = (status, "no field `rope`")
    with pytest.raises(Refused, match=f"answered {status}: no field `rope`"):
        await client.ask("POST", "/x", json={})
    with pytest.raises(ValueError, match="no field `rope`"):
        await client.turn("/x", {}, str)


@pytest.mark.parametrize(("status", "headers"), [(429, {"Retry-After": "0"}), (503, {"Retry-After": "0"})])
async def test_a_busy_server_is_asked_again(server, client, status, headers) -> None:
    server.says["/x"] = once_busy(status, headers)
    assert await client.ask("POST", "/x", json={}) == "done"


async def test_a_busy_server_that_does_not_say_how_long_gets_a_moment(server, client, monkeypatch) -> None:
    monkeypatch.setattr(server_client, "_BUSY_S", 0.0)
    server.says["/x"] = once_busy(429, {"Retry-After": "Tue, 01 Dec 2026 15:08:51 GMT"})
    assert await client.ask("POST", "/x", json={}) == "done"


async def test_waiting_for_a_busy_server_ends_with_the_request(server, client) -> None:
    async def busy(request: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "3600"})

    server.says["/x"] = busy
    with pytest.raises(EngineUnavailable, match=r"/x took more than 0\.2 s"):
        await client.ask("POST", "/x", json={}, timeout_s=0.2)


async def test_no_endless_await(server, client) -> None:
    server.says["/x"] = hanging
    with pytest.raises(EngineUnavailable, match=r"/x took more than 0\.2 s"):
        await client.ask("POST", "/x", json={}, timeout_s=0.2)


@pytest.mark.parametrize(
    "text", ["<html>", '{"choices": [', "[]", "{}", "null", '{"choices": []}', "[" * 100_000, '{"choices": {}}']
)
async def test_an_answer_that_cannot_be_read_is_quoted(server, client, text) -> None:
    server.says["/x"] = (200, text)
    with pytest.raises(EngineUnavailable, match="/x: unreadable answer"):
        await client.read("POST", "/x", lambda answer: from_json(answer)["choices"][0]["text"])


async def test_an_answer_without_end_is_cut_off(server, client, monkeypatch) -> None:
    monkeypatch.setattr(server_client, "LONGEST_ANSWER", 1 << 20)
    server.says["/x"] = (200, "a" * (2 << 20))
    with pytest.raises(EngineUnavailable, match="more than 1 MiB"):
        await client.ask("GET", "/x")


async def test_a_server_that_is_not_there() -> None:
    client = ServerClient("e0", "http://127.0.0.1:1")
    with pytest.raises(EngineUnavailable, match="e0 is not running"):
        await client.ask("GET", "/x")
    with pytest.raises(EngineUnavailable, match=r"not ready after 0\.3 s: .*Connect"):
        async with client.starting(0.3):
            await client.until_healthy("/health")
    with pytest.raises(EngineUnavailable, match="e0 is not running"):
        await client.ask("GET", "/x")


async def test_the_key_is_sent_and_never_told(server, monkeypatch) -> None:
    monkeypatch.setenv("STARLOOM_TEST_KEY", "sesame-1234")
    client = ServerClient("e0", server.url, key_variable="STARLOOM_TEST_KEY")
    client.open()
    server.says["/x"] = (401, "Incorrect API key provided: sesame-1234")
    with pytest.raises(Refused) as failure:
        await client.ask("GET", "/x")
    assert "Incorrect API key provided: ***" in str(failure.value)
    assert server.headers[0]["Authorization"] == "Bearer sesame-1234"
    await client.close()


def test_a_key_that_is_not_there_is_named(monkeypatch) -> None:
    monkeypatch.delenv("STARLOOM_TEST_KEY", raising=False)
    with pytest.raises(EngineUnavailable, match=r"no STARLOOM_TEST_KEY, which rollout\.key_variable names"):
        ServerClient("e0", "http://127.0.0.1:1", key_variable="STARLOOM_TEST_KEY").open()


@pytest.mark.parametrize("values", [None, "12", [1, -1], [1.0], [True], ["1"]])
def test_token_ids_are_whole_numbers(values) -> None:
    with pytest.raises(ValueError, match="expected a list of token ids"):
        token_ids(values)


@pytest.mark.parametrize("values", [[float("nan"), -1.0], [float("-inf"), -1.0], [None, -1.0], ["-1", -1.0]])
def test_log_probabilities_are_finite(values) -> None:
    with pytest.raises(ValueError, match="expected finite log-probabilities"):
        log_probabilities(values, [1, 2])


def test_there_is_one_log_probability_a_token() -> None:
    assert log_probabilities([-1, -0.5], [7, 8]) == [-1.0, -0.5]
    with pytest.raises(ValueError, match="got 2 tokens with 1"):
        log_probabilities([-1.0], [7, 8])


def test_metrics_are_summed_over_their_lines() -> None:
    text = '# HELP a:n x\na:n{source="x",rank="0"} 1.0\na:n{rank="1"} 2.5\nb:n 7\na_other_total 4\n'
    assert prometheus(text, "a") == ({"n": 3.5, "other_total": 4.0}, {"n": {"rank": "1"}, "other_total": {}})
