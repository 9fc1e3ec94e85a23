"""What the commands share: options, a sandbox to work with, and how a failure is told."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, NoReturn, TypeVar

import typer

from sandbox.client import SandboxClient, local_sandbox, sandbox_at
from sandbox.contract import RequestRefused, SandboxUnavailable, Tier
from sandbox.places import FORMS, TOKEN_VARIABLE, check_url

T = TypeVar("T")
BAD_INPUT, UNAVAILABLE = 2, 3
"""Exit codes."""

Slots = Annotated[int | None, typer.Option(min=1, help="Programs at once; default one per core, at least two.")]
Isolation = Annotated[Tier | None, typer.Option("--tier", help="Isolation; default the strongest that works here.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="URL", help=f"A sandbox that runs elsewhere instead of one of this command's own: {FORMS}."
    ),
]
Token = Annotated[
    str | None, typer.Option(envvar=TOKEN_VARIABLE, help="For http and https; better given in the environment.")
]


def with_sandbox(
    work: Callable[[SandboxClient], Awaitable[T]],
    *,
    at: str | None = None,
    token: str | None = None,
    slots: int | None = None,
    tier: Tier | None = None,
) -> T:
    """What `work` makes of a sandbox: the one at a URL, or a private one that ends with it. Exits where none is."""

    async def inside() -> T:
        async with _opened(at, token, slots, tier) as sandbox:
            return await work(sandbox)

    try:
        return asyncio.run(inside())
    except SandboxUnavailable as error:
        fail(UNAVAILABLE, f"the sandbox is not available: {error}")
    except RequestRefused as error:
        fail(BAD_INPUT, str(error))


def fail(code: int, message: str) -> NoReturn:
    """Say what is wrong on stderr and end the command."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)


def _opened(
    at: str | None, token: str | None, slots: int | None, tier: Tier | None
) -> AbstractAsyncContextManager[SandboxClient]:
    if at is None:
        return local_sandbox(slots=slots, tier=tier)
    if slots or tier:
        fail(BAD_INPUT, "--slots and --tier are of a private sandbox; with --at the nodes have their own")
    try:
        check_url(at)
    except ValueError as error:
        fail(BAD_INPUT, f"--at: {error}")
    return sandbox_at(at, token)
