"""A node behind a socket: the same exam, any number of calls, and an answer to whatever comes in."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandbox.backend.conformance import BEHAVIOUR, HOSTILE, failures
from sandbox.backend.outcome import Facts, result_of
from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import ExecRequest, ExecResult, Executor, RequestRefused, SandboxUnavailable
from sandbox.frames import MOST_REQUEST_BYTES, Kind, encode, read_frame
from sandbox.gateway import Gateway
from sandbox.listening import listening
from sandbox.remote import RemoteNode
from tests.sandbox.support import SandboxThread, until


class Scripted:
    """An executor that does what the program is named: `hang`, `wait`, `fail`, `break`, else echo."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.cancelled: list[str] = []
        self.go_on = asyncio.Event()

    async def execute(self, request: ExecRequest) -> ExecResult:
        self.seen.append(request.id)
        try:
            match request.code:
                case "hang":
                    await asyncio.Event().wait()
                case "wait":
                    await self.go_on.wait()
                case "fail":
                    raise SandboxUnavailable("no zygote")
                case "break":
                    raise ZeroDivisionError("a bug")
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        stdout = request.code.encode("utf-8", "replace")
        return result_of(request, Facts(stdout, b"", wait_status=0, wall_s=0, queued_s=0))


@asynccontextmanager
async def gateway(executor: Executor, path: Path) -> AsyncIterator[Gateway]:
    with listening(path) as listener:
        serving = Gateway(executor)
        await serving.open(listener)
        try:
            yield serving
        finally:
            await serving.close(drain_s=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.sock"


@pytest.fixture
async def scripted(path: Path) -> AsyncIterator[Scripted]:
    executor = Scripted()
    async with gateway(executor, path):
        yield executor


@pytest.fixture
async def client(scripted: Scripted, path: Path) -> AsyncIterator[SandboxClient]:
    async with sandbox_at(f"unix:{path}") as client:
        yield client


@pytest.mark.e2e
def test_a_sandbox_behind_a_socket_passes_the_exam_of_backends(sandbox: SandboxThread, path: Path) -> None:
    async def sit() -> list[str]:
        async with gateway(sandbox.client, path), sandbox_at(f"unix:{path}") as client:
            return await failures(client.execute, BEHAVIOUR + HOSTILE)

    assert sandbox.run(sit()) == []


async def test_calls_are_answered_as_they_end_and_each_gets_its_own(client: SandboxClient, scripted: Scripted) -> None:
    slow = asyncio.create_task(client.execute(ExecRequest(id="slow", code="wait")))
    texts = [f"print({n})" for n in range(200)]
    results = await asyncio.gather(*(client.execute(ExecRequest(id=text, code=text)) for text in texts))
    assert [(result.id, result.stdout) for result in results] == [(text, text) for text in texts]
    assert not slow.done()
    scripted.go_on.set()
    assert (await slow).id == "slow"


@pytest.mark.parametrize("code", ["\ud800 lone", "nul \0", "x" * (8 << 20)], ids=["surrogate", "nul", "8 MB"])
async def test_any_text_passes(client: SandboxClient, code: str) -> None:
    result = await client.execute(ExecRequest(code=code))
    assert result.stdout == code.encode("utf-8", "replace").decode()


async def test_our_failure_is_an_exception_at_the_client(client: SandboxClient) -> None:
    with pytest.raises(SandboxUnavailable, match="no zygote"):
        await client.execute(ExecRequest(code="fail"))
    with pytest.raises(SandboxUnavailable, match="a bug"):
        await client.execute(ExecRequest(code="break"))


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
    assert {type(error) for error in await asyncio.gather(*calls, return_exceptions=True)} == {SandboxUnavailable}
    with pytest.raises(SandboxUnavailable, match="closed"):
        await node.submit(ExecRequest(code=""))


async def test_closing_lets_calls_end_and_refuses_new_ones(path: Path) -> None:
    executor = Scripted()
    async with gateway(executor, path) as serving, sandbox_at(f"unix:{path}") as client:
        running = asyncio.create_task(client.execute(ExecRequest(code="wait")))
        await until(lambda: executor.seen)
        closing = asyncio.create_task(serving.close(drain_s=10))
        await asyncio.sleep(0)
        with pytest.raises(SandboxUnavailable, match="being stopped"):
            await client.execute(ExecRequest(code="late"))
        executor.go_on.set()
        assert (await running).stdout == "wait"
        await closing


async def test_what_does_not_end_in_time_is_told_so(path: Path) -> None:
    executor = Scripted()
    async with gateway(executor, path) as serving, sandbox_at(f"unix:{path}") as client:
        running = asyncio.create_task(client.execute(ExecRequest(id="a", code="hang")))
        await until(lambda: executor.seen)
        await serving.close(drain_s=0.01)
        with pytest.raises(SandboxUnavailable, match="stopped before the call ended"):
            await running
        await until(lambda: executor.cancelled == ["a"])


async def test_the_same_client_reaches_the_next_node_at_the_place(path: Path) -> None:
    async with gateway(Scripted(), path):
        node = RemoteNode(path, connect_s=0.2)
        assert (await node.submit(ExecRequest(code="first"))).stdout == "first"
    with pytest.raises(SandboxUnavailable, match="sandbox serve --socket"):
        await node.submit(ExecRequest(code="nobody"))
    async with gateway(Scripted(), path):
        results = await asyncio.gather(*(node.submit(ExecRequest(code="again")) for _ in range(5)))
        assert {result.stdout for result in results} == {"again"}
        await node.close()


@pytest.mark.parametrize("url", ["", "/tmp/node.sock", "unix:node.sock", "tcp://127.0.0.1:1"])
async def test_another_kind_of_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="unix:/path/to/node"):
        async with sandbox_at(url):
            pass


def header(size: int, *, mark: bytes = b"sl1\0", kind: int = Kind.RUN, call: int = 7) -> bytes:
    return struct.pack("!4sBQI", mark, kind, call, size)


def body(text: bytes) -> bytes:
    return header(len(text)) + text


GOOD = {"code": "ok"}
ANSWERED = {
    "not JSON": (body(b"{broken"), "no JSON"),
    "empty": (body(b""), "no JSON"),
    "not UTF-8": (body(b'{"code": "\xff"}'), "no JSON"),
    "nested without end": (body(b"[" * 200_000), "no JSON"),
    "a list": (body(b"[]"), "wrong at its top"),
    "no code": (body(b"{}"), "wrong at code"),
    "code that is a number": (body(b'{"code": 7}'), "wrong at code"),
    "an unknown field": (body(b'{"code": "", "shell": true}'), "wrong at shell"),
    "an unknown limit": (body(b'{"code": "", "limits": {"memory_gb": 1}}'), "wrong at limits.memory_gb"),
    "a limit in words": (body(b'{"code": "", "limits": {"wall_s": "5"}}'), "wrong at limits.wall_s"),
    "no finite limit": (body(b'{"code": "", "limits": {"wall_s": NaN}}'), "wrong at limits.wall_s"),
    "a session": (body(b'{"code": "", "session": "a"}'), "sessions are not available"),
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
    "another version": (header(0, mark=b"sl2\0"), "begins with"),
    "an answer": (header(0, kind=Kind.RESULT), "not 3"),
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


@pytest.mark.parametrize("sent", [b"", b"sl1", header(100) + b"{}", encode(Kind.CANCEL, 3)])
async def test_a_stream_that_is_cut_anywhere_harms_nobody(client: SandboxClient, path: Path, sent: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(sent)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert (await client.execute(ExecRequest(code="others"))).stdout == "others"
