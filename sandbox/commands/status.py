"""`python -m sandbox status`: the nodes of a sandbox and its queue, once or as they change."""

import asyncio
import json
import sys
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from sandbox.client import SandboxClient
from sandbox.commands.running import BAD_INPUT, At, Token, fail, with_sandbox
from sandbox.contract import NodeStatus, SandboxStatus
from sandbox.places import shown

_EVERY_S = 1.0
_NONE_ALIVE = 1
_START = "start one with `python -m sandbox node --socket PATH`, `--http HOST:PORT` or `--valkey URL`"
_TIER_STYLE = {"full": "green", "container": "yellow", "none": "bold red"}


def status(
    at: At = None,
    token: Token = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew each second, until Ctrl-C.")] = False,
) -> None:
    """Show the nodes of a running sandbox and its queue. Exit code: 0, or 1 if no node is alive; 3 if none answers."""
    if at is None:
        fail(BAD_INPUT, f"name a running sandbox with --at URL; {_START}")
    place = shown(at)

    async def once(sandbox: SandboxClient) -> bool:
        found = await sandbox.status()
        if as_json:
            print(json.dumps(found.model_dump()), flush=True)
        else:
            Console().print(_page(place, found))
        return bool(found.nodes)

    async def again(sandbox: SandboxClient) -> bool:
        if as_json:
            while True:
                await once(sandbox)
                await asyncio.sleep(_EVERY_S)
        with Live(console=Console(), auto_refresh=False) as live:
            while True:
                live.update(_page(place, await sandbox.status()), refresh=True)
                await asyncio.sleep(_EVERY_S)

    try:
        alive = with_sandbox(again if watch else once, at=at, token=token)
    except KeyboardInterrupt:
        sys.exit(0)
    raise typer.Exit(0 if alive else _NONE_ALIVE)


def _page(place: str, found: SandboxStatus) -> RenderableType:
    waiting = Text(f"Waiting: {found.queued_interactive} interactive, {found.queued_training} training calls")
    if not found.nodes:
        none = f"No node is alive at {place}: start one with `python -m sandbox node --valkey URL`"
        return Group(Text(none, style="bold red"), waiting)
    return Group(_table(found.nodes), waiting)


def _table(nodes: tuple[NodeStatus, ...]) -> Table:
    table = Table(Column("node", overflow="fold"), Column("tier", no_wrap=True), box=box.SIMPLE)
    for heading in ("busy", "sessions", "answered", "load", "up", "seen"):
        table.add_column(heading, justify="right", no_wrap=True)
    for node in sorted(nodes, key=lambda node: node.name):
        table.add_row(
            Text(node.name + (" (draining)" if node.draining else "")),
            Text(node.tier, style=_TIER_STYLE[node.tier]),
            f"{node.busy}/{node.slots}",
            str(node.sessions),
            str(node.answered),
            f"{node.load_1m:.1f}",
            f"{node.uptime_s:.0f} s",
            f"{node.seen_s:.0f} s ago",
        )
    return table
