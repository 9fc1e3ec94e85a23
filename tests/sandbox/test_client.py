"""What Python callers hold: URLs of sandboxes, and sessions that number, serialise and let go."""

import asyncio
from contextlib import suppress

import pytest

from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import (
    ExecRequest,
    Limits,
    Priority,
    RequestRefused,
    SandboxBusy,
    SandboxStatus,
    SandboxUnavailable,
    SessionLost,
)
from sandbox.places import check_url, shown
from tests.sandbox.support import Scripted, until


@pytest.fixture
def scripted() -> Scripted:
    return Scripted()


@pytest.fixture
def client(scripted: Scripted) -> SandboxClient:
    return SandboxClient(scripted)


async def test_a_session_numbers_its_cells_and_ends_with_its_block(client: SandboxClient, scripted: Scripted) -> None:
    limits, other = Limits(wall_s=1), Limits(wall_s=2)
    async with client.session(limits=limits, priority=Priority.INTERACTIVE) as session:
        assert (await session.execute("x = 1")).stdout == "x = 1"
        await session.execute("input()", "text", limits=other)
        assert scripted.ended == []
    first, second = scripted.requests
    assert (first.session, first.cell, first.limits, first.stdin) == (session.name, 0, limits, "")
    assert (second.session, second.cell, second.limits, second.stdin) == (session.name, 1, other, "text")
    assert {request.priority for request in scripted.requests} == {Priority.INTERACTIVE}
    assert scripted.ended == [session.name]
    with pytest.raises(SessionLost, match="ended by its owner"):
        await session.execute("late")


def test_sessions_have_names_of_their_own(client: SandboxClient) -> None:
    assert len({client.session().name for _ in range(100)}) == 100


async def test_cells_that_are_asked_for_at_once_run_one_after_the_other(
    client: SandboxClient, scripted: Scripted
) -> None:
    async with client.session() as session:
        first = asyncio.create_task(session.execute("wait"))
        others = [asyncio.create_task(session.execute(str(n))) for n in range(3)]
        await until(lambda: scripted.requests)
        await asyncio.sleep(0)
        assert [request.code for request in scripted.requests] == ["wait"]
        scripted.go_on.set()
        await asyncio.gather(first, *others)
    assert [(request.code, request.cell) for request in scripted.requests] == [
        ("wait", 0),
        ("0", 1),
        ("1", 2),
        ("2", 3),
    ]


@pytest.mark.parametrize(("code", "failure"), [("lost", SessionLost), ("fail", SandboxUnavailable)])
async def test_a_session_whose_state_is_gone_or_unknown_stays_lost(
    client: SandboxClient, scripted: Scripted, code: str, failure: type[Exception]
) -> None:
    async with client.session() as session:
        await session.execute("1")
        with pytest.raises(failure) as raised:
            await session.execute(code)
        assert raised.type is failure
        for _ in range(2):
            with pytest.raises(SessionLost, match="in cell 1"):
                await session.execute("2")
    assert [request.cell for request in scripted.requests] == [0, 1]
    assert scripted.ended == [session.name]


@pytest.mark.parametrize(("code", "failure"), [("busy", SandboxBusy), ("refuse", RequestRefused)])
async def test_a_cell_that_never_ran_takes_no_number(
    client: SandboxClient, scripted: Scripted, code: str, failure: type[Exception]
) -> None:
    async with client.session() as session:
        with pytest.raises(failure):
            await session.execute(code)
        await session.execute("1")
    assert [request.cell for request in scripted.requests] == [0, 0]


async def test_a_cancelled_block_lets_its_session_go(client: SandboxClient, scripted: Scripted) -> None:
    async def work() -> None:
        async with client.session() as session:
            await session.execute("hang")

    task = asyncio.create_task(work())
    await until(lambda: scripted.requests)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert scripted.ended == [scripted.requests[0].session]


class Gone(Scripted):
    async def end_session(self, session: str) -> None:
        raise SandboxUnavailable("nobody is there")


async def test_an_end_that_nobody_hears_does_not_hide_what_the_block_raised(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError):
        async with SandboxClient(Gone()).session():
            raise ZeroDivisionError
    assert "has to idle out: nobody is there" in caplog.text


async def test_the_client_passes_the_rest_on(client: SandboxClient, scripted: Scripted) -> None:
    assert (await client.execute(ExecRequest(code="1"))).stdout == "1"
    await client.end_session("s")
    assert scripted.ended == ["s"]
    assert isinstance(await client.status(), SandboxStatus)
    with pytest.raises(LookupError, match="other processes"):
        _ = client.node


@pytest.mark.parametrize(
    "url",
    [
        "unix:/run/node.sock",
        "unix:/odd/name#1?.sock",
        "http://127.0.0.1:8080",
        "https://sandbox.example",
        "http://[::1]:8080",
        "valkey://host:6379/0",
        "valkeys://user:secret@host/1",
        "redis://host:6379",
        "valkey+unix:///run/valkey.sock",
    ],
)
def test_these_are_urls_of_sandboxes(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/tmp/node.sock",
        "unix:node.sock",
        "unix://host/node.sock",
        "tcp://127.0.0.1:1",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://[::1",
        "valkey:///0",
        "valkey+unix:relative",
    ],
)
async def test_another_kind_of_url_is_refused_without_connecting(url: str) -> None:
    with pytest.raises(ValueError, match="unix:/path/to/node"):
        async with sandbox_at(url):
            pass


@pytest.mark.parametrize(
    ("url", "people_see"),
    [
        ("valkey://host:6379/0", "valkey://host:6379/0"),
        ("valkeys://user:secret@host:1/2", "valkeys://user:***@host:1/2"),
        ("valkey+unix://:secret@/run/valkey.sock", "valkey+unix://:***@/run/valkey.sock"),
        ("https://:secret@[::1]:80", "https://:***@[::1]:80"),
    ],
)
def test_passwords_are_not_shown(url: str, people_see: str) -> None:
    assert shown(url) == people_see


async def test_a_refused_url_does_not_show_its_password_either() -> None:
    with pytest.raises(ValueError, match="not like") as raised:
        check_url("amqp://user:secret@host")
    assert "secret" not in str(raised.value)
