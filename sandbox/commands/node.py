"""`python -m sandbox node`: this machine's programs for others, through the doors that are named."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from sandbox.commands.running import BAD_INPUT, UNAVAILABLE, Isolation, Slots, fail
from sandbox.contract import SandboxUnavailable
from sandbox.doors.http_tokens import TokensUnusable
from sandbox.doors.listening import CannotListen
from sandbox.doors.serving import Settings, serve
from sandbox.starting import MOST_SESSIONS, SESSION_IDLE_S


def node(
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Take calls from a unix socket; its folder has to be yours alone."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Take calls from HTTP; without --tokens, of this machine only."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who may come in by HTTP; `python -m sandbox token` adds to it.")
    ] = None,
    valkey: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="STARLOOM_SANDBOX_VALKEY",
            help="Share the calls of a Valkey with other nodes: valkey(s)://HOST:PORT/DB or valkey+unix:///path.",
        ),
    ] = None,
    slots: Slots = None,
    tier: Isolation = None,
    name: Annotated[str | None, typer.Option(help="Unique in its cluster; default made of host and process.")] = None,
    most_sessions: Annotated[int, typer.Option(min=1, help="Sessions that it keeps at once.")] = MOST_SESSIONS,
    session_idle_s: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a session that nobody used is lost.")
    ] = SESSION_IDLE_S,
    drain_s: Annotated[float, typer.Option(min=0, help="Seconds that calls may take to end after SIGTERM.")] = 5.0,
) -> None:
    """Run a node until SIGTERM, for calls from one or more of --socket, --http and --valkey.

    Prints one line when it takes calls. The first SIGTERM or Ctrl-C lets calls end, the second ends it at once. Exit
    code: 0 when told to stop; 2 for a place that cannot be used, 3 if the sandbox could not start.
    """
    if not (socket or http or valkey):
        fail(BAD_INPUT, "a node needs a door: --socket PATH, --http HOST:PORT or --valkey URL")
    if tokens and not http:
        fail(BAD_INPUT, "--tokens are for --http, which is missing")
    try:
        settings = Settings(
            socket=socket,
            http=_address(http) if http else None,
            tokens=tokens,
            valkey=valkey,
            slots=slots,
            tier=tier,
            name=name,
            most_sessions=most_sessions,
            session_idle_s=session_idle_s,
            drain_s=drain_s,
        )
        asyncio.run(serve(settings, ready=lambda line: print(line, flush=True)))
    except (CannotListen, TokensUnusable, ValueError) as error:
        fail(BAD_INPUT, str(error))
    except SandboxUnavailable as error:
        fail(UNAVAILABLE, f"the sandbox is not available: {error}")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"--http: expected HOST:PORT, such as 127.0.0.1:8080, got {text!r}")
    return host, int(port)
