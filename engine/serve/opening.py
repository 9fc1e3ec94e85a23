"""Everything that serving needs, opened in order and closed in reverse: sandbox, engines, door.

Leaves out what is served (``checkpoints.py``) and signals (``engine.commands.serve``).
"""

import asyncio
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from engine.data.render import Renderer
from engine.environment import spare_the_event_loop
from engine.rollout.base import RolloutEngine
from engine.rollout.engine_factory import make_scripted_engine, make_vllm_engine
from engine.rollout.patience import open_sandbox
from engine.rollout.pool import EnginePool
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.registry import make_scheduler
from engine.rollout.tools.base import Tool
from engine.rollout.tools.prompt import system_of
from engine.rollout.tools.registry import load_tools
from engine.serve.chat import Agent, Chat
from engine.serve.checkpoints import NotServable, Served
from engine.serve.door import Door
from sandbox.doors.http_door import is_loopback
from sandbox.doors.http_tokens import Tokens
from sandbox.doors.listening import CannotListen

PATIENCE_S = 5.0
"""Seconds that a sandbox may be away before whoever waits for an answer is told."""

RETRIES = 1
PROGRESS_S = 5.0

Say = Callable[[str], None]


def bound(host: str, port: int, tokens: Tokens | None) -> socket.socket:
    """A socket at the address, not listening yet: it is taken, but nobody waits in vain while engines start.

    Raises ``CannotListen`` for an address in use, and for one that others reach, without tokens.
    """
    if tokens is None and not is_loopback(host):
        raise CannotListen(
            f"{host} can be reached from other machines, so that requests need tokens: make one with "
            "`python -m sandbox token NAME --tokens FILE` and start with --token-file FILE"
        )
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


async def serve(
    served: Served, listener: socket.socket, tokens: Tokens | None, *, sandbox: str | None, queue: int, say: Say
) -> None:
    """Serve until cancelled. ``queue`` is the most answers under way. Raises what keeps it from starting."""
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(opened(served, sandbox, say))
        door = Door(Chat(agent, most_in_flight=queue), tokens)
        await door.open(listener)
        spare_the_event_loop()
        stack.push_async_callback(door.close)
        say(f"ready: {url(listener)}  (playground; OpenAI's API at {url(listener)}v1; Ctrl-C ends it)")
        await asyncio.Event().wait()


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@asynccontextmanager
async def opened(served: Served, sandbox: str | None, say: Say) -> AsyncIterator[Agent]:
    """The agent with its engines started."""
    tools = load_tools(served.tools)
    renderer = _renderer(served, tools)
    async with AsyncExitStack() as stack:
        logs = stack.enter_context(kept_after_failure("starloom-serve-"))
        pool = EnginePool(
            [_engine(served, number, renderer, logs) for number in range(served.engines.engines)],
            scheduler=make_scheduler(
                served.engines.scheduler, max_running=served.engines.max_running, lengths=LengthModel()
            ),
            retries=RETRIES,
            start_timeout_s=served.engines.start_timeout_s,
        )
        place = await stack.enter_async_context(
            open_sandbox(sandbox, slots=served.sandbox.slots, patience_s=PATIENCE_S)
        )
        say(f"sandbox: {'a private node' if sandbox is None else 'reached'}")
        await _started(pool, served, logs, say)
        stack.push_async_callback(pool.close)
        yield Agent(
            name=served.name,
            pool=pool,
            renderer=renderer,
            tools=tools,
            sandbox=place,
            limits=served.limits,
        )


@contextmanager
def kept_after_failure(prefix: str) -> Iterator[Path]:
    """A folder for logs that stays when the block fails: they are wanted then."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    except asyncio.CancelledError:  # that is how serving ends
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def _renderer(served: Served, tools: Sequence[Tool]) -> Renderer:
    tokenizer = served.folder / "tokenizer.json"
    try:
        return Renderer(tokenizer, system=system_of(tools))
    except Exception as error:  # tokenizers raises nothing narrower
        raise NotServable(f"{tokenizer} cannot be used: {error}") from error


def _engine(served: Served, number: int, renderer: Renderer, logs: Path) -> RolloutEngine:
    name, context = f"{served.engines.kind}-{number}", served.limits.context_tokens
    if served.engines.kind == "scripted":
        return make_scripted_engine(renderer, name, context_tokens=context, seed=0)
    return make_vllm_engine(
        served.engines,
        name,
        model_folder=served.folder,
        logs=logs,
        context_tokens=context,
        seed=secrets.randbits(31),
    )


async def _started(pool: EnginePool, served: Served, logs: Path, say: Say) -> None:
    """Start the engines, with a line now and then: vLLM takes most of a minute."""
    count, kind, began = served.engines.engines, served.engines.kind, time.monotonic()
    hint = f", which takes up to a minute; logs: {logs}" if kind == "vllm" else ""
    say(f"starting {count} {kind} engine{'s'[: count > 1]}{hint}")
    starting = asyncio.ensure_future(pool.start())
    try:
        while not (await asyncio.wait([starting], timeout=PROGRESS_S))[0]:
            say(f"still starting, {time.monotonic() - began:.0f} s")
        await starting
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    say(f"engines ready after {time.monotonic() - began:.0f} s")
