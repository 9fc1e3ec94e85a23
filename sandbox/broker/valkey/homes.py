"""On which nodes sessions live, as far as this client knows; the server decides where two clients differ.

What is remembered here is what brings sessions through a Valkey that lost its data.
"""

import asyncio
import json
from math import inf

from sandbox.broker.valkey.link import Link
from sandbox.broker.valkey.placement import place
from sandbox.broker.valkey.settings import Settings
from sandbox.contract import ExecRequest, NodeStatus, SandboxStatus

_FRESH_S = 1.0
_MOST_SESSIONS = 100_000


class Homes:
    """Where cells are to be sent."""

    def __init__(self, link: Link, settings: Settings) -> None:
        self._link = link
        self._settings = settings
        self._nodes: dict[str, NodeStatus] = {}
        self._nodes_until = -inf
        self._of: dict[str, str] = {}

    async def find(self, request: ExecRequest) -> tuple[str, str]:
        """The node of a call, or '', and '1' where that is a proposal for a new session, else '0'."""
        if request.session is None:
            return "", "0"
        if home := self._of.get(request.session):
            return home, "0"
        if request.cell:
            return "", "0"  # another client opened the session: the server knows, or it is lost
        if asyncio.get_running_loop().time() > self._nodes_until:
            await self.status()
        return place(request.session, self._nodes) or "", "1"

    def remember(self, session: str, node: str) -> None:
        """The session lives there."""
        self._of[session] = node
        if len(self._of) > _MOST_SESSIONS:
            del self._of[next(iter(self._of))]

    def forget(self, session: str) -> None:
        """The session ended or was lost."""
        self._of.pop(session, None)

    async def status(self) -> SandboxStatus:
        """See `Submitter.status`, but raises one of `LOST`."""
        nodes, interactive, training = await self._link.run("status", self._settings.dead_ms)
        self._nodes = {node.decode(): _status(said, seen_ms / 1000) for node, seen_ms, said in nodes}
        fresh_s = _FRESH_S if nodes else _FRESH_S / 10  # cells wait for the first node
        self._nodes_until = asyncio.get_running_loop().time() + fresh_s
        return SandboxStatus(
            nodes=tuple(sorted(self._nodes.values(), key=lambda node: node.name)),
            queued_interactive=interactive,
            queued_training=training,
        )


def _status(said: bytes, seen_s: float) -> NodeStatus:
    """What a node said of itself; what only nodes of another version say is left out."""
    fields = {name: value for name, value in json.loads(said).items() if name in NodeStatus.model_fields}
    return NodeStatus.model_validate(fields | {"seen_s": seen_s})
