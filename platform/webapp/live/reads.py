"""Looks into the database for sockets: what a run has that is newer than a cursor, as a message ready to send.

Sockets that ask for the same run and cursor while a look is under way share it: twenty viewers of a run cost one query.
The looks have a few threads of their own, so that they never take more connections than those. Leaves out when to look:
``consumer.py``.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async

from webapp.runs.models import Run
from webapp.telemetry.queries import updates

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4
MESSAGE_BYTES = 1_000_000

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="live")


@dataclass(frozen=True)
class Read:
    """What was found: ``body`` is a JSON object without its type. ``began_at``: the loop's time before the look."""

    cursor: int
    reset: bool
    body: str
    began_at: float = 0.0

    def message(self, kind: str) -> str:
        """The message of this kind; for one that is too long, word that it is to be had from the API."""
        text = f'{{"type":"{kind}",{self.body[1:]}'
        if len(text) <= MESSAGE_BYTES:  # ASCII: `dumped` escapes everything else
            return text
        return dumped({"type": "refetch", "cursor": self.cursor, "reset": self.reset})


def dumped(message: dict[str, Any]) -> str:
    return json.dumps(message, allow_nan=False, separators=(",", ":"))


def look(run_id: str, since: int | None) -> Read:
    """What the run has beyond ``since``; None stands for now. Raises ``Run.DoesNotExist``. Blocks: for a thread."""
    run = Run.objects.select_related("created_by").defer("spec", "toml").get(pk=run_id)
    found = updates(run, run.revision if since is None else since)
    return Read(found.cursor, found.reset, dumped(found.as_json()))


def in_thread(function: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """A function that asks the database, to be awaited: it runs in one of our threads."""
    return cast(Callable[P, Awaitable[T]], database_sync_to_async(function, thread_sensitive=False, executor=_threads))


class SharedReads:
    """The looks under way in one event loop."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, int | None], asyncio.Task[Read]] = {}

    async def look(self, run_id: str, since: int | None) -> Read:
        """Like ``look``, in a thread. The look may have begun before the call: ``Read.began_at`` says when."""
        asked = (run_id, since)
        task = self._under_way.get(asked)
        if task is None:
            task = self._under_way[asked] = asyncio.create_task(self._read(run_id, since))
            task.add_done_callback(lambda done: self._forget(asked, done))
        return await asyncio.shield(task)

    async def _read(self, run_id: str, since: int | None) -> Read:
        began_at = asyncio.get_running_loop().time()
        return replace(await in_thread(look)(run_id, since), began_at=began_at)

    def _forget(self, asked: tuple[str, int | None], done: asyncio.Task[Read]) -> None:
        del self._under_way[asked]
        if not done.cancelled():
            done.exception()  # looked at here too: everybody who waited may have gone


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedReads] = WeakKeyDictionary()


def shared_reads() -> SharedReads:
    """Those of the running loop."""
    return _of_loop.setdefault(asyncio.get_running_loop(), SharedReads())
