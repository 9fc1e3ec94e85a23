"""``python -m engine serve``: a checkpoint with its tools behind an OpenAI-compatible endpoint, until Ctrl-C.

Exit codes: 0 told to stop, 1 an engine or the sandbox did not come up, 2 a path, option or address that cannot be used.
Leaves out what it does: ``engine.serve``, imported when the first line is out.
"""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from engine.commands.options import SandboxOption
from engine.commands.terminal import FAILED, refuse, say


class Kind(StrEnum):
    """Engines that can be started here."""

    vllm = "vllm"
    scripted = "scripted"


def serve(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="A Hugging Face folder with the protocol's tags, or a run's folder: its newest checkpoint.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback want --token-file.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 finds a free one.")] = 8090,
    engines: Annotated[int, typer.Option(min=1, help="Engine processes.")] = 1,
    kind: Annotated[Kind, typer.Option(help="`scripted` needs no model's weights: for tests.")] = Kind.vllm,
    tools: Annotated[
        str, typer.Option(metavar="NAME,...", help="Tools, as a recipe names them; default the run's, else python.")
    ] = "",
    sandbox: SandboxOption = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Most assistant turns of an answer.")] = None,
    max_response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer, tool responses included.")
    ] = None,
    tool_response_chars: Annotated[
        int | None, typer.Option(min=1, help="Tool text over this is cut in its middle.")
    ] = None,
    context_tokens: Annotated[
        int | None, typer.Option(min=64, help="Longest conversation and answer together; default the model's own.")
    ] = None,
    kv_cache_mb: Annotated[int | None, typer.Option(min=1, help="KV cache of each engine, MiB.")] = None,
    queue: Annotated[int, typer.Option(min=1, help="Most answers under way; more are told to come again.")] = 256,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="Who may come in; `python -m sandbox token NAME --tokens FILE` adds to it.", show_default=False
        ),
    ] = None,
) -> None:
    """Serve a checkpoint with its tools behind an OpenAI-compatible endpoint, and a playground at its root."""
    say(f"serving {model}")
    from engine.rollout.base import EngineUnavailable
    from engine.rollout.tools.registry import ToolsRefused
    from engine.serve.checkpoints import NotServable, Wishes, find
    from engine.serve.opening import bound
    from engine.serve.opening import serve as serve_until_cancelled
    from engine.sink.run_folder import RunFolderError
    from sandbox.contract import RequestRefused, SandboxUnavailable
    from sandbox.doors.http_tokens import Tokens, TokensUnusable
    from sandbox.doors.listening import CannotListen

    wishes = Wishes(
        kind=kind.value,
        engines=engines,
        kv_cache_mb=kv_cache_mb,
        tools=tuple(name.strip() for name in tools.split(",") if name.strip()),
        context_tokens=context_tokens,
        max_turns=max_turns,
        max_response_tokens=max_response_tokens,
        tool_response_chars=tool_response_chars,
    )
    try:
        served = find(model, wishes)
        tokens = Tokens(token_file) if token_file else None
        with bound(host, port, tokens) as listener:
            work = serve_until_cancelled(served, listener, tokens, sandbox=sandbox, queue=queue, say=say)
            asyncio.run(_until_told(work))
    except (NotServable, RunFolderError, ToolsRefused, TokensUnusable, CannotListen, RequestRefused) as error:
        raise refuse(error) from error
    except (EngineUnavailable, SandboxUnavailable) as error:
        say(f"not served: {error}", error=True)
        raise typer.Exit(FAILED) from error
    say("ended")


async def _until_told(work: Coroutine[None, None, None]) -> None:
    """Do the work until Ctrl-C or SIGTERM; another one, while things are put away, ends the process as ever."""
    serving = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        say("ending")
        serving.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    with contextlib.suppress(asyncio.CancelledError):  # that is what it was told
        await serving
