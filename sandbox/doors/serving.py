"""A node and its doors in one process, from the start to a clean end: what `python -m sandbox node` runs.

Calls come through a unix socket, through HTTP, or from a Valkey that many nodes share. Leaves out how any of those
works.
"""

import asyncio
import resource
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandbox.broker import Broker, MemoryBroker
from sandbox.contract import Tier
from sandbox.doors.desk import Desk
from sandbox.doors.gateway import Gateway
from sandbox.doors.listening import listening
from sandbox.node import Node
from sandbox.places import shown
from sandbox.starting import MOST_SESSIONS, SESSION_IDLE_S, started_node

if TYPE_CHECKING:
    from sandbox.doors.http_door import HttpDoor


@dataclass(frozen=True)
class Settings:
    """What one process offers: at least one of `socket`, `http` and `valkey`."""

    socket: Path | None = None
    http: tuple[str, int] | None = None
    tokens: Path | None = None
    valkey: str | None = None
    slots: int | None = None
    tier: Tier | None = None
    name: str | None = None
    most_sessions: int = MOST_SESSIONS
    session_idle_s: float = SESSION_IDLE_S
    drain_s: float = 5.0


async def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Until SIGTERM or SIGINT; then calls may end for `drain_s` seconds. A second signal ends it at once.

    Tells `ready` one line once calls are taken. Raises `CannotListen`, `TokensUnusable`, `SandboxUnavailable`, and
    `ValueError` for a Valkey URL that is none.
    """
    stop = _stop_signal()
    async with AsyncExitStack() as stack:  # what cannot be had is told before the node starts, which takes longest
        listener = stack.enter_context(listening(settings.socket)) if settings.socket else None
        broker = _broker(settings.valkey)
        stack.push_async_callback(broker.close)
        desk = Desk(broker)
        http = _http_door(desk, settings)
        node = await started_node(
            broker,
            slots=settings.slots,
            tier=settings.tier,
            name=settings.name,
            most_sessions=settings.most_sessions,
            session_idle_s=settings.session_idle_s,
        )
        stack.push_async_callback(node.close)
        places = []
        if listener:
            gateway = Gateway(desk)
            await gateway.open(listener)
            stack.push_async_callback(gateway.close)
            places.append(f"unix:{settings.socket}")
        if http:
            places.append(await http.open())
            stack.push_async_callback(http.close)
        if settings.valkey:
            places.append(shown(settings.valkey))
        _allow_many_connections()
        ready(f"Sandbox ready at {' and '.join(places)}: {node.backend.describe()}")
        await stop.wait()
        await _drain(desk, node, settings)


async def _drain(desk: Desk, node: Node, settings: Settings) -> None:
    if settings.valkey:  # what waits there is for the other nodes
        await asyncio.gather(desk.close(settings.drain_s), node.drain(settings.drain_s))
    else:  # what waits is for nobody else: the node goes on with it for as long
        await desk.close(settings.drain_s)


def _broker(valkey: str | None) -> Broker:
    if valkey is None:
        return MemoryBroker()
    from sandbox.broker.valkey import ValkeyBroker  # takes long to import, as what is below

    return ValkeyBroker(valkey)


def _http_door(desk: Desk, settings: Settings) -> "HttpDoor | None":
    if settings.http is None:
        return None
    from sandbox.doors.http_door import HttpDoor
    from sandbox.doors.http_tokens import Tokens

    return HttpDoor(desk, *settings.http, Tokens(settings.tokens) if settings.tokens else None)


def _stop_signal() -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGTERM, signal.SIGINT)

    def told() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)

    for number in numbers:
        loop.add_signal_handler(number, told)
    return stop


def _allow_many_connections() -> None:
    """The soft limit of 1,024 descriptors is for programs that use select(); a thousand clients would fill it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
