"""A node behind a socket: the same exam, any number of calls, and an answer to whatever comes in."""

import asyncio
import json
import resource
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox.backend.conformance import BEHAVIOUR, failures
from sandbox.backend.sessions import exam as sessions_exam
from sandbox.backend.sessions.exam import SESSION_BEHAVIOUR
from sandbox.broker import Submitter
from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import (
    MOST_REQUEST_BYTES,
    ExecRequest,
    Limits,
    Priority,
    RequestRefused,
    SandboxBusy,
    SandboxUnavailable,
    SessionLost,
)
from sandbox.doors.desk import Desk
from sandbox.doors.frames import Kind, encode, read_frame
from sandbox.doors.gateway import Gateway
from sandbox.doors.listening import listening
from sandbox.doors.remote import RemoteNode
from tests.sandbox.support import STATUS, SandboxThread, Scripted, until


@asynccontextmanager
async def gateway(submitter: Submitter, path: Path) -> AsyncIterator[Desk]:
    """A gateway and the desk behind it, as a node has them."""
    with listening(path) as listener:
        desk = Desk(submitter)
        serving = Gateway(desk)
        await serving.open(listener)
        try:
            yield desk
        finally:
            await desk.close(drain_s=0)
            await serving.close()


CLIENTS = 1024


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Both ends of `CLIENTS` connections in one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * CLIENTS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.sock"


@pytest.fixture
async def scripted(path: Path) -> AsyncIterator[Scripted]:
    submitter = Scripted()
    async with gateway(submitter, path):
        yield submitter


@pytest.fixture
async def client(scripted: Scripted, path: Path) -> AsyncIterator[SandboxClient]:
    async with sandbox_at(f"unix:{path}") as client:
        yield client


@pytest.mark.e2e
def test_a_sandbox_behind_a_socket_passes_the_exams_of_backends(sandbox: SandboxThread, path: Path) -> None:
    async def sit() -> list[str]:
        async with gateway(sandbox.client.submitter, path), sandbox_at(f"unix:{path}") as client:
            single = await failures(client.execute, BEHAVIOUR)
            return single + await sessions_exam.failures(client.execute, client.end_session, SESSION_BEHAVIOUR)

    assert sandbox.run(sit()) == []


async def test_calls_are_answered_as_they_end_and_each_gets_its_own(client: SandboxClient, scripted: Scripted) -> None:
    slow = asyncio.create_task(client.execute(ExecRequest(id="slow", code="wait")))
    texts = [f"print({n})" for n in range(200)]
    results = await asyncio.gather(*(client.execute(ExecRequest(id=text, code=text)) for text in texts))
    assert [(result.id, result.stdout) for result in results] == [(text, text) for text in texts]
    assert not slow.done()
    scripted.go_on.set()
    assert (await slow).id == "slow"


@pytest.mark.e2e
@pytest.mark.usefixtures("many_descriptors")
async def test_a_thousand_clients_that_come_at_once_are_all_served(scripted: Scripted, path: Path) -> None:
    async def one(name: int) -> None:
        node = RemoteNode(path)
        texts = [f"{name} {call}" for call in range(10)]
        results = await asyncio.gather(*(node.submit(ExecRequest(code=text)) for text in texts))
        assert [result.stdout for result in results] == texts
        await together.wait()  # nobody hangs up before all are in
        await node.close()

    together = asyncio.Barrier(CLIENTS)
    await asyncio.gather(*(one(name) for name in range(CLIENTS)))
    assert len(scripted.seen) == 10 * CLIENTS


@pytest.mark.parametrize("code", ["\ud800 lone", "nul \0", "x" * (8 << 20)], ids=["surrogate", "nul", "8 MB"])
async def test_any_text_passes(client: SandboxClient, code: str) -> None:
    result = await client.execute(ExecRequest(code=code))
    assert result.stdout == code.encode("utf-8", "replace").decode()


OURS = {
    "fail": (SandboxUnavailable, "no zygote"),
    "busy": (SandboxBusy, "the queue is full"),
    "lost": (SessionLost, "its node died"),
    "refuse": (RequestRefused, "cell 0 of a session that lives"),
    "break": (SandboxUnavailable, "a bug"),
}


@pytest.mark.parametrize("code", OURS)
async def test_our_exceptions_pass_as_what_they_are(client: SandboxClient, code: str) -> None:
    failure, message = OURS[code]
    with pytest.raises(failure, match=message) as raised:
        await client.execute(ExecRequest(code=code))
    assert raised.type is failure


async def test_every_field_of_a_request_arrives(client: SandboxClient, scripted: Scripted) -> None:
    request = ExecRequest(
        code="1", stdin="in", session="s", cell=3, limits=Limits(wall_s=1), priority=Priority.INTERACTIVE, queue_s=2
    )
    await client.execute(request)
    assert scripted.requests == [request]


async def test_the_status_passes(client: SandboxClient) -> None:
    assert await client.status() == STATUS


async def test_a_request_too_large_is_refused_before_it_is_sent(client: SandboxClient, scripted: Scripted) -> None:
    with pytest.raises(RequestRefused, match=f"{MOST_REQUEST_BYTES} are allowed"):
        await client.execute(ExecRequest(code="x" * MOST_REQUEST_BYTES))
    assert scripted.seen == []


async def test_a_cancelled_call_ends_at_the_node(client: SandboxClient, scripted: Scripted) -> None:
    call = asyncio.create_task(client.execute(ExecRequest(id="a", code="hang")))
    await until(lambda: scripted.seen == ["a"])
    call.cancel()
    await until(lambda: scripted.cancelled == ["a"])
    assert (await client.execute(ExecRequest(code="next"))).stdout == "next"


async def test_a_client_that_goes_away_takes_its_calls_with_it(scripted: Scripted, path: Path) -> None:
    node = RemoteNode(path)
    calls = [asyncio.create_task(node.submit(ExecRequest(id=name, code="hang"))) for name in "ab"]
    await until(lambda: len(scripted.seen) == 2)
    await node.close()
    await until(lambda: sorted(scripted.cancelled) == ["a", "b"])
    for call in calls:
        with pytest.raises(SandboxUnavailable, match="connection to the sandbox node was lost"):
            await call
    with pytest.raises(SandboxUnavailable, match="closed"):
        await node.submit(ExecRequest(code=""))


async def test_sessions_are_ended_by_name_and_with_the_connection_that_used_them(
    client: SandboxClient, scripted: Scripted, path: Path
) -> None:
    async with sandbox_at(f"unix:{path}") as other:
        for session in ("ended", "left"):
            await other.execute(ExecRequest(code="1", session=session))
        with pytest.raises(SessionLost):
            await other.execute(ExecRequest(code="lost", session="lost"))
        await client.execute(ExecRequest(code="1", session="another"))
        await other.end_session("ended")
        assert scripted.ended == ["ended"]
    await until(lambda: scripted.ended == ["ended", "left"])


async def test_closing_lets_calls_end_and_refuses_new_ones(path: Path) -> None:
    submitter = Scripted()
    async with gateway(submitter, path) as desk, sandbox_at(f"unix:{path}") as client:
        running = asyncio.create_task(client.execute(ExecRequest(code="wait")))
        await until(lambda: submitter.seen)
        closing = asyncio.create_task(desk.close(drain_s=10))
        await asyncio.sleep(0)
        with pytest.raises(SandboxUnavailable, match="being stopped"):
            await client.execute(ExecRequest(code="late"))
        submitter.go_on.set()
        assert (await running).stdout == "wait"
        await closing


@pytest.mark.parametrize(("session", "failure"), [(None, SandboxUnavailable), ("s", SessionLost)])
async def test_what_does_not_end_in_time_is_told_so(path: Path, session: str | None, failure: type[Exception]) -> None:
    submitter = Scripted()
    async with gateway(submitter, path) as desk, sandbox_at(f"unix:{path}") as client:
        running = asyncio.create_task(client.execute(ExecRequest(id="a", code="hang", session=session)))
        await until(lambda: submitter.seen)
        await desk.close(drain_s=0.01)
        with pytest.raises(failure, match="stopped before the call ended") as raised:
            await running
        assert raised.type is failure
        assert submitter.cancelled == ["a"]


async def test_a_cell_whose_connection_breaks_is_lost_and_never_sent_again(path: Path) -> None:
    node = RemoteNode(path)
    async with gateway(Scripted(), path):
        await node.submit(ExecRequest(code="1", session="s"))
    submitter = Scripted()
    with listening(path) as listener:
        serving = Gateway(submitter)
        await serving.open(listener)
        cell = asyncio.create_task(node.submit(ExecRequest(code="hang", session="s", cell=1)))
        await until(lambda: submitter.seen)
        await serving.close()
        with pytest.raises(SessionLost, match="ended with the connection"):
            await cell
        assert len(submitter.seen) == 1
    await node.end_session("s")  # gone already: no error, and no wait for a node
    await node.close()


async def test_the_same_client_reaches_the_next_node_at_the_place(path: Path) -> None:
    async with gateway(Scripted(), path):
        node = RemoteNode(path, connect_s=0.2)
        assert (await node.submit(ExecRequest(code="first"))).stdout == "first"
    with pytest.raises(SandboxUnavailable, match="sandbox node --socket"):
        await node.submit(ExecRequest(code="nobody"))
    async with gateway(Scripted(), path):
        results = await asyncio.gather(*(node.submit(ExecRequest(code="again")) for _ in range(5)))
        assert {result.stdout for result in results} == {"again"}
        await node.close()


def header(size: int, *, mark: bytes = b"sl2\0", kind: int = Kind.RUN, call: int = 7) -> bytes:
    return struct.pack("!4sBQI", mark, kind, call, size)


def body(text: bytes) -> bytes:
    return header(len(text)) + text


GOOD = {"code": "ok"}
ANSWERED = {
    "not JSON": (body(b"{broken"), "not JSON"),
    "empty": (body(b""), "not JSON"),
    "not UTF-8": (body(b'{"code": "\xff"}'), "not JSON"),
    "nested without end": (body(b"[" * 200_000), "not JSON"),
    "a list": (body(b"[]"), "wrong at its top"),
    "no code": (body(b"{}"), "wrong at code"),
    "code that is a number": (body(b'{"code": 7}'), "wrong at code"),
    "an unknown field": (body(b'{"code": "", "shell": true}'), "wrong at shell"),
    "an unknown limit": (body(b'{"code": "", "limits": {"memory_gb": 1}}'), "wrong at limits.memory_gb"),
    "a limit in words": (body(b'{"code": "", "limits": {"wall_s": "five"}}'), "wrong at limits.wall_s"),
    "no finite limit": (body(b'{"code": "", "limits": {"wall_s": NaN}}'), "wrong at limits.wall_s"),
    "a cell without a session": (body(b'{"code": "", "cell": 1}'), "session is null"),
    "an end of no session": (header(2, kind=Kind.END_SESSION) + b"{}", "wrong at session"),
    "over 16 MB": (header((16 << 20) + 1) + bytes((16 << 20) + 1), "16777217 bytes, 16777216 are allowed"),
}


@pytest.mark.parametrize("case", ANSWERED)
async def test_a_bad_request_is_answered_with_what_is_wrong_and_the_connection_stays(
    scripted: Scripted, path: Path, case: str
) -> None:
    sent, complaint = ANSWERED[case]
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent + encode(Kind.RUN, 8, GOOD))
    answers = {frame.call: frame for _ in "12" if (frame := await read_frame(reader))}
    assert answers[7].kind == Kind.REFUSED
    assert complaint in json.loads(answers[7].body)["message"]
    assert answers[8].kind == Kind.RESULT
    writer.close()


HUNG_UP_ON = {
    "another protocol": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "begins with"),
    "another version": (header(0, mark=b"sl1\0"), "begins with"),
    "an answer": (header(0, kind=Kind.RESULT), "not 16"),
    "an unknown kind": (header(0, kind=99), "not 99"),
    "a number in use": (2 * encode(Kind.RUN, 7, {"code": "hang"}), "call 7 is running already"),
}


@pytest.mark.parametrize("case", HUNG_UP_ON)
async def test_what_is_no_frame_is_named_and_ends_this_connection_alone(
    client: SandboxClient, path: Path, case: str
) -> None:
    sent, complaint = HUNG_UP_ON[case]
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    frame = await read_frame(reader)
    assert frame
    assert frame.kind == Kind.REFUSED
    assert complaint in json.loads(frame.body)["message"]
    assert await reader.read() == b""
    writer.close()
    assert (await client.execute(ExecRequest(code="others"))).stdout == "others"


@pytest.mark.parametrize("sent", [b"", b"sl2", header(100) + b"{}", encode(Kind.CANCEL, 3)])
async def test_a_stream_that_is_cut_anywhere_harms_nobody(client: SandboxClient, path: Path, sent: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert (await client.execute(ExecRequest(code="others"))).stdout == "others"
