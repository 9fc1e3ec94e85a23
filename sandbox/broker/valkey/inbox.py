"""What a member of the cluster is told: answers to its calls, calls to stop, sessions to end. One reader for all.

Messages stay on the server until the member says what it has (`present.lua`), so that none is lost with a connection.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from sandbox.broker.valkey.link import BLOCK_MS, LOST, Link
from sandbox.broker.valkey.settings import Settings

_AT_ONCE = 500
_NOTHING = "0-0"

Receive = Callable[[str, str, bytes], object]
"""Takes a message: its kind, the name of the call it is about, its body. It may come twice."""


class Inbox:
    """The messages for the member `name`, each given to `receive`."""

    def __init__(self, link: Link, settings: Settings, name: str, receive: Receive) -> None:
        self._link = link
        self._settings = settings
        self._name = name
        self._receive = receive
        self._epoch = ""
        self.last = _NOTHING

    async def listen(self, recover: Callable[[], Awaitable[object]]) -> None:
        """For ever; after each loss of the connection `recover` has to come to an end first."""
        key = self._link.key(f"inbox:{self._name}")
        while True:
            try:
                found = await self._link.read("XREAD", "COUNT", _AT_ONCE, "BLOCK", BLOCK_MS, "STREAMS", key, self.last)
            except LOST:
                await recover()
            else:
                for _, messages in found or ():
                    self._take(messages)

    async def missed(self) -> set[str]:
        """Take what came while the connection was lost; return the calls of this member that are unanswered."""
        absent_ms = self._settings.absent_ms
        epoch, messages, calls = await self._link.run("catch_up", self._name, absent_ms, self.last, self._epoch)
        if epoch.decode() != self._epoch:  # other data, in which ids may have begun anew
            self._epoch, self.last = epoch.decode(), _NOTHING
        self._take(messages)
        return {call.decode() for call in calls}

    def _take(self, messages: Iterable[Any]) -> None:
        for identity, flat in messages:
            message = dict(zip(flat[::2], flat[1::2], strict=True))
            self._receive(message[b"kind"].decode(), message[b"call"].decode(), message[b"body"])
            self.last = max(self.last, identity.decode(), key=_order)


def _order(identity: str) -> tuple[int, ...]:
    return tuple(map(int, identity.split("-")))
