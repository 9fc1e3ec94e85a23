"""`python -m sandbox batch`: JSON lines on stdin, JSON lines on stdout; `sandbox.batch` says what they hold."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

import typer

from sandbox.batch import Answer, run_batch
from sandbox.client import SandboxClient
from sandbox.commands.running import At, Isolation, Slots, Token, with_sandbox

_CHUNK = 1 << 16


def batch(slots: Slots = None, tier: Isolation = None, at: At = None, token: Token = None) -> None:
    """Run programs from JSON lines on stdin: {"id", "code", "stdin"?, "cells"?, "limits"?}. Results in input order.

    `cells` are earlier cells of the same session: they run first, and the answer is that of `code`. A line that is
    not a request is answered with {"id", "error": {"line", "field", "message"}}, and so is one that the sandbox
    failed to run. Exit code: 0, or 1 if there was such a line, or 3 if no sandbox could start.
    """

    async def work(sandbox: SandboxClient) -> bool:
        return await run_batch(sandbox, _stdin(), _print)

    flawless = with_sandbox(work, at=at, token=token, slots=slots, tier=tier)
    raise typer.Exit(not flawless)


async def _stdin() -> AsyncIterator[bytes]:
    """What is there, as it comes. Not by a thread: Ctrl-C would have to wait for the next line."""
    source = sys.stdin.fileno()
    while True:
        await _readable(source)
        chunk = os.read(source, _CHUNK)
        if not chunk:
            return
        yield chunk


async def _readable(source: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(source, ready.set)
    except PermissionError:  # a plain file always is
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(source)


async def _print(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)
