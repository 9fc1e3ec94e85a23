"""The HTTP door and its client: who comes in, what each answer means, and what hanging up does."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sandbox.broker import Submitter
from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import (
    MOST_REQUEST_BYTES,
    ExecRequest,
    RequestRefused,
    SandboxBusy,
    SandboxStatus,
    SandboxUnavailable,
    SessionLost,
)
from sandbox.doors.desk import Desk
from sandbox.doors.http_client import HttpNode
from sandbox.doors.http_door import HttpDoor
from sandbox.doors.http_tokens import Tokens, add_token
from sandbox.doors.listening import CannotListen
from tests.sandbox.support import STATUS, Scripted, until


class Door:
    """A door that is open, with the tokens of two people."""

    def __init__(self, desk: Desk, url: str, ada: str, bob: str) -> None:
        self.desk, self.url, self.ada, self.bob = desk, url, ada, bob

    @asynccontextmanager
    async def asked(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A request as any program would send it; headers with None left out."""
        given = {"Authorization": f"Bearer {self.ada}", "Content-Type": "application/json", **headers}
        async with (
            aiohttp.ClientSession(headers={name: value for name, value in given.items() if value}) as http,
            http.request(method, self.url + path, data=body) as response,
        ):
            yield response


@asynccontextmanager
async def opened(submitter: Submitter, folder: Path) -> AsyncIterator[Door]:
    file = folder / "tokens"
    ada, bob = add_token(file, "ada"), add_token(file, "bob")
    desk = Desk(submitter)
    door = HttpDoor(desk, "127.0.0.1", 0, Tokens(file))
    try:
        yield Door(desk, await door.open(), ada, bob)
    finally:
        await desk.close(drain_s=0)
        await door.close()


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
async def door(scripted: Scripted, tmp_path: Path) -> AsyncIterator[Door]:
    async with opened(scripted, tmp_path) as door:
        yield door


@pytest.fixture
async def client(door: Door) -> AsyncIterator[SandboxClient]:
    async with sandbox_at(door.url, door.ada) as client:
        yield client


EXEC = ("POST", "/v1/exec")
NO_TOKEN, WRONG_TOKEN = {"Authorization": ""}, {"Authorization": "Bearer starloom_sandbox_x"}
ANSWERS: dict[str, tuple[tuple[str, str], Any, dict[str, str], int, str]] = {
    "no token": (EXEC, {"code": "1"}, NO_TOKEN, 401, "Bearer"),
    "a wrong token": (EXEC, {"code": "1"}, WRONG_TOKEN, 401, "Bearer"),
    "another scheme": (EXEC, {"code": "1"}, {"Authorization": "Basic YTpi"}, 401, "Bearer"),
    "no token, batch": (("POST", "/v1/batch"), {"code": "1"}, NO_TOKEN, 401, "Bearer"),
    "no token, status": (("GET", "/v1/status"), None, NO_TOKEN, 401, "Bearer"),
    "no token, sessions": (("DELETE", "/v1/sessions/s"), None, NO_TOKEN, 401, "Bearer"),
    "no such path": (("GET", "/v2"), None, {}, 404, ""),
    "no such path without a token": (("GET", "/v2"), None, NO_TOKEN, 401, "Bearer"),
    "another method": (("GET", "/v1/exec"), None, {}, 405, ""),
    "what a browser sends": (EXEC, {"code": "1"}, {"Content-Type": "text/plain"}, 415, "application/json"),
    "a batch of the wrong type": (("POST", "/v1/batch"), b"{}", {}, 415, "application/x-ndjson"),
    "no JSON": (EXEC, b"{broken", {}, 422, "not JSON"),
    "not UTF-8": (EXEC, b'{"code": "\xff"}', {}, 422, "not JSON"),
    "no code": (EXEC, {}, {}, 422, "required"),
    "an unknown limit": (EXEC, {"code": "", "limits": {"memory_gb": 1}}, {}, 422, ""),
    "refused behind the door": (EXEC, {"code": "refuse"}, {}, 422, "that lives"),
    "too large": (EXEC, b"x" * (MOST_REQUEST_BYTES + 1), {}, 413, ""),
    "busy": (EXEC, {"code": "busy"}, {}, 429, "the queue is full"),
    "a lost session": (EXEC, {"code": "lost"}, {}, 410, "its node died"),
    "our failure": (EXEC, {"code": "fail"}, {}, 503, "no zygote"),
    "our bug": (EXEC, {"code": "break"}, {}, 503, "a bug"),
}


@pytest.mark.parametrize("case", ANSWERS)
async def test_an_error_is_a_problem_that_says_what_is_wrong(door: Door, case: str) -> None:
    (method, path), body, headers, status, detail = ANSWERS[case]
    sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    async with door.asked(method, path, sent, **headers) as response:
        assert response.status == status
        assert response.content_type == "application/problem+json"
        problem = await response.json(content_type=None)
        assert problem["status"] == status
        assert detail in problem["detail"]
        assert ("Retry-After" in response.headers) == (status in (429, 503))
        assert ("WWW-Authenticate" in response.headers) == (status == 401)
        assert "Access-Control-Allow-Origin" not in response.headers


async def test_the_wrong_field_is_named(door: Door) -> None:
    async with door.asked(*EXEC, b'{"code": "", "limits": {"memory_gb": 1}}') as response:
        assert (await response.json(content_type=None))["field"] == "limits.memory_gb"


async def test_a_body_without_end_is_cut_while_it_is_read(door: Door, scripted: Scripted) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * (1 << 20)

    async with door.asked(*EXEC, endless()) as response:
        assert response.status == 413
    assert scripted.requests == []


async def test_health_needs_no_token_and_answers_while_a_program_runs(door: Door, scripted: Scripted) -> None:
    async with door.asked("GET", "/healthz", **NO_TOKEN) as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    async with sandbox_at(door.url, door.ada) as client:
        call = asyncio.create_task(client.execute(ExecRequest(code="wait")))
        await until(lambda: scripted.requests)
        async with asyncio.timeout(0.2), door.asked("GET", "/healthz") as response:
            assert response.status == 200
        scripted.go_on.set()
        await call


async def test_a_closing_door_is_unhealthy_and_answers_what_it_stops(door: Door, scripted: Scripted) -> None:
    async with sandbox_at(door.url, door.ada) as client:
        call = asyncio.create_task(client.execute(ExecRequest(code="hang")))
        cell = asyncio.create_task(client.execute(ExecRequest(code="hang", session="s")))
        await until(lambda: len(scripted.requests) == 2)
        await door.desk.close(drain_s=0.01)
        with pytest.raises(SandboxUnavailable, match="stopped before") as raised:
            await call
        assert raised.type is SandboxUnavailable
        with pytest.raises(SessionLost, match="stopped before"):
            await cell
        async with door.asked("GET", "/healthz") as response:
            assert response.status == 503
        with pytest.raises(SandboxUnavailable, match="being stopped"):
            await client.execute(ExecRequest(code="late"))


OURS = {
    "fail": (SandboxUnavailable, "no zygote"),
    "busy": (SandboxBusy, "the queue is full"),
    "lost": (SessionLost, "its node died"),
    "refuse": (RequestRefused, "that lives"),
}


@pytest.mark.parametrize("code", OURS)
async def test_our_exceptions_pass_as_what_they_are(client: SandboxClient, code: str) -> None:
    failure, message = OURS[code]
    with pytest.raises(failure, match=message) as raised:
        await client.execute(ExecRequest(code=code))
    assert raised.type is failure


async def test_calls_status_and_any_text_pass(client: SandboxClient, scripted: Scripted) -> None:
    texts = [f"print({n})" for n in range(100)] + ["\ud800 lone", "nul \0", "x" * (8 << 20)]
    results = await asyncio.gather(*(client.execute(ExecRequest(id=text[:9], code=text)) for text in texts))
    assert [result.stdout for result in results] == [text.encode("utf-8", "replace").decode() for text in texts]
    assert await client.status() == STATUS


async def test_a_wrong_token_is_told_at_once(door: Door) -> None:
    for token in (None, "wrong"):
        with pytest.raises(RequestRefused, match="STARLOOM_SANDBOX_TOKEN"):
            async with sandbox_at(door.url, token):
                pass


async def test_a_token_that_is_taken_out_counts_no_more(door: Door, client: SandboxClient, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("\n".join(line for line in file.read_text().splitlines() if line.startswith("bob ")))
    with pytest.raises(RequestRefused):
        await client.execute(ExecRequest(code="1"))
    async with sandbox_at(door.url, door.bob):
        pass


async def test_tokens_that_others_can_read_let_nobody_in_and_strangers_do_not_learn_where_they_are(
    door: Door, client: SandboxClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.chmod(0o644)
    file.write_text(file.read_text() + "\n")
    with pytest.raises(SandboxUnavailable, match="its log says why") as raised:
        await client.execute(ExecRequest(code="1"))
    assert str(file) not in str(raised.value)
    assert f"chmod 600 {file}" in caplog.text


async def test_sessions_of_one_token_are_out_of_reach_for_another(door: Door, scripted: Scripted) -> None:
    for token in (door.ada, door.bob):
        async with sandbox_at(door.url, token) as client:
            await client.execute(ExecRequest(code="1", session="s"))
            await client.end_session("s")
            await client.end_session("ada:s")
    assert [request.session for request in scripted.requests] == ["ada:s", "bob:s"]
    assert scripted.ended == ["ada:s", "ada:ada:s", "bob:s", "bob:ada:s"]


async def test_a_session_name_that_gets_too_long_by_its_owner_is_refused(client: SandboxClient) -> None:
    await client.execute(ExecRequest(code="1", session="s" * 124))
    with pytest.raises(RequestRefused, match="session: at most 124"):
        await client.execute(ExecRequest(code="1", session="s" * 125))


@pytest.mark.parametrize("path", ["/v1/exec", "/v1/batch"])
async def test_hanging_up_kills_what_runs(door: Door, scripted: Scripted, path: str) -> None:
    kind = {"/v1/exec": "application/json", "/v1/batch": "application/x-ndjson"}[path]
    line = {"code": "hang"} if path == "/v1/exec" else {"id": "a", "code": "hang"}

    async def ask() -> None:
        async with door.asked("POST", path, json.dumps(line).encode(), **{"Content-Type": kind}) as response:
            await response.read()

    call = asyncio.create_task(ask())
    await until(lambda: scripted.requests)
    call.cancel()
    await until(lambda: scripted.cancelled)


async def test_a_door_that_dies_with_a_cell_lost_its_session_and_one_that_is_away_lost_nothing() -> None:

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with HttpNode(f"http://127.0.0.1:{port}", connect_s=0.3) as node:
        for session, failure in ((None, SandboxUnavailable), ("s", SessionLost)):
            with pytest.raises(failure) as raised:
                await node.submit(ExecRequest(code="1", session=session))
            assert isinstance(raised.value, SessionLost) == (session is not None)
        server.close()
        await server.wait_closed()
        with pytest.raises(SandboxUnavailable, match="no sandbox answers") as raised:
            await node.submit(ExecRequest(code="1", session="s", cell=1))
        assert raised.type is SandboxUnavailable


async def test_a_batch_is_answered_while_it_is_sent(door: Door) -> None:
    answered = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"id": 1, "code": "1"}\n'
        await answered.wait()
        yield b'{"id": 2, "code": "2", "cells": ["0"]}\n{"id": 3}\n'

    async with door.asked("POST", "/v1/batch", body(), **{"Content-Type": "application/x-ndjson"}) as response:
        assert response.status == 200
        first = json.loads(await response.content.readline())
        answered.set()
        rest = [json.loads(line) for line in (await response.read()).splitlines()]
    assert (first["id"], first["stdout"]) == (1, "1")
    assert [answer.get("stdout") for answer in rest] == ["2", None]
    assert rest[1] == {"id": 3, "error": {"line": 3, "field": "code", "message": "Field required"}}


async def test_without_tokens_only_this_machine_comes_in(scripted: Scripted) -> None:
    with pytest.raises(CannotListen, match="python -m sandbox token"):
        HttpDoor(Desk(scripted), "0.0.0.0", 0, None)
    door = HttpDoor(Desk(scripted), "127.0.0.1", 0, None)
    url = await door.open()
    try:
        async with sandbox_at(url) as client:
            assert isinstance(await client.status(), SandboxStatus)
        async with (
            aiohttp.ClientSession() as http,  # as a browser that another site told that its name is 127.0.0.1
            http.get(f"{url}/v1/status", headers={"Host": "rebound.example"}) as response,
        ):
            assert response.status == 403
    finally:
        await door.close()


async def test_a_port_in_use_is_named(door: Door, scripted: Scripted) -> None:
    port = int(door.url.rpartition(":")[2])
    with pytest.raises(CannotListen, match=f"127.0.0.1:{port}"):
        await HttpDoor(Desk(scripted), "127.0.0.1", port, None).open()
