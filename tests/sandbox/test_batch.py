"""JSON lines in, JSON lines out: order, both shapes of an answer, bounds."""

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.batch import Answer, lines, run_batch
from sandbox.client import SandboxClient
from sandbox.contract import MOST_REQUEST_BYTES, SandboxUnavailable
from tests.sandbox.support import STATUS, Scripted, until


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def answers(submitter: Scripted, text: bytes) -> tuple[bool, list[Answer]]:
    found: list[Answer] = []

    async def emit(answer: Answer) -> None:
        found.append(answer)

    return await run_batch(SandboxClient(submitter), stream(text), emit), found


async def test_results_come_in_the_order_of_the_lines() -> None:
    submitter = Scripted()
    text = b"".join(json.dumps({"id": n, "code": "wait" if n == 0 else str(n)}).encode() + b"\n" for n in range(8))
    batch = asyncio.create_task(answers(submitter, text))
    await until(lambda: len(submitter.requests) == 8)
    submitter.go_on.set()
    flawless, found = await batch
    assert flawless
    assert [answer["id"] for answer in found] == [*range(8)]
    assert set(found[0]) == {"id", "status", "stdout", "stderr", "exit_code", "wall_s", "queued_s", "error"}


BAD: dict[str, tuple[Any, str | None, str]] = {
    "no JSON": (b"{broken", None, "not JSON"),
    "not UTF-8": (b'{"id": 1, "code": "\xff"}', None, "not JSON"),
    "no object": (7, None, ""),
    "no id": ({"code": ""}, "id", "required"),
    "a true id": ({"id": True, "code": ""}, "id", "whole number"),
    "no code": ({"id": "x"}, "code", "required"),
    "code that is none": ({"id": "x", "code": 7}, "code", "string"),
    "an unknown limit": ({"id": "x", "code": "", "limits": {"memory_gb": 1}}, "limits.memory_gb", ""),
    "cells that are none": ({"id": "x", "code": "", "cells": [1]}, "cells.0", "string"),
    "a session of its own": ({"id": "x", "code": "", "session": "theirs"}, "session", ""),
    "too long": (b'{"id": "x", "code": "' + b"x" * MOST_REQUEST_BYTES, None, "longer than"),
    "refused by the sandbox": ({"id": "x", "code": "refuse"}, None, "that lives"),
    "failed by the sandbox": ({"id": "x", "code": "fail"}, None, "the sandbox failed: no zygote"),
    "a session that was lost": ({"id": "x", "code": "1", "cells": ["lost"]}, None, "its node died"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_line_without_a_result_is_named_and_spoils_no_other(case: str) -> None:
    line, field, message = BAD[case]
    line = line if isinstance(line, bytes) else json.dumps(line).encode()
    flawless, found = await answers(Scripted(), b'{"id": "a", "code": "1"}\n\n' + line + b'\n{"id": "z", "code": "2"}')
    assert not flawless
    assert [answer.get("status") for answer in found] == ["ok", None, "ok"]
    error = found[1]["error"]
    assert (error["line"], error["field"]) == (3, field)
    assert message in error["message"]
    assert found[1]["id"] in ("x", None, True)


async def test_cells_run_before_the_code_in_a_session_that_is_let_go() -> None:
    submitter = Scripted()
    line = {"id": "a", "code": "3", "stdin": "in", "cells": ["1", "2"], "limits": {"wall_s": 5}}
    _, (answer,) = await answers(submitter, json.dumps(line).encode())
    assert answer["stdout"] == "3"
    assert [(request.code, request.cell, request.stdin) for request in submitter.requests] == [
        ("1", 0, ""),
        ("2", 1, ""),
        ("3", 2, "in"),
    ]
    assert {request.limits.wall_s for request in submitter.requests} == {5}
    assert submitter.ended == [submitter.requests[0].session]


async def test_empty_cells_are_a_session_too_and_none_are_not() -> None:
    submitter = Scripted()
    text = b'{"id": 1, "code": "1", "cells": []}\n{"id": 2, "code": "2"}\n{"id": 3, "code": "3", "cells": null}'
    await answers(submitter, text)
    assert [request.session is not None for request in submitter.requests] == [True, False, False]


async def test_it_reads_ahead_no_further_than_the_slots_can_use() -> None:
    submitter, read = Scripted(), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b'{"id": 1, "code": "wait"}\n'
            await asyncio.sleep(0)

    async def emit(_: Answer) -> None:
        raise ConnectionResetError

    batch = asyncio.create_task(run_batch(SandboxClient(submitter), endless(), emit))
    bound = 4 * STATUS.nodes[0].slots + 3  # what waits, what is awaited, what is being put, what is being read
    await until(lambda: len(submitter.requests) >= 4 * STATUS.nodes[0].slots)
    for _ in range(100):
        await asyncio.sleep(0)
    assert read <= bound
    submitter.go_on.set()
    with pytest.raises(ConnectionResetError):  # nobody takes the answers any more: the rest is stopped
        await batch


async def test_no_sandbox_is_told_before_the_first_line() -> None:
    class Gone(Scripted):
        async def status(self) -> Any:
            raise SandboxUnavailable("nobody is there")

    with pytest.raises(SandboxUnavailable, match="nobody"):
        await answers(Gone(), b"{}")


@given(text=st.binary(max_size=60).map(lambda text: text.replace(b"a", b"\n")), cuts=st.lists(st.integers(0, 60)))
async def test_lines_do_not_depend_on_how_the_stream_is_cut(text: bytes, cuts: list[int]) -> None:
    ends = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    chunks = [text[start:end] for start, end in pairwise(ends)]
    found = [pair async for pair in lines(stream(*chunks), most=7)]
    plain = [(number, line[:8]) for number, line in enumerate(text.split(b"\n"), 1) if line[:8].strip()]
    assert found == plain
