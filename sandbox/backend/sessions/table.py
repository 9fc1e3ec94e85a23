"""The sessions of one backend: whose cell comes next, who waits, which answer is kept, when a session goes.

Keeps the rules in `sandbox.contract.request`. A name serves once: when its session has gone it gets `SessionLost`,
so that nothing that comes late can open it anew.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from sandbox.backend.protocol import CallLost
from sandbox.backend.sessions.resident import Start
from sandbox.backend.sessions.session import Session
from sandbox.contract import (
    ExecRequest,
    ExecResult,
    Limits,
    RequestRefused,
    SandboxBusy,
    SandboxUnavailable,
    SessionLost,
)

_OF_CELL_0 = ("memory_mb", "processes", "scratch_mb")  # limits of the process, which the later cells find
_REMEMBERED = 10_000  # names of sessions that have gone, newest; the others are "not known here"


@dataclass
class _Entry:
    """A session, whether it has a process at the moment or not."""

    name: str
    limits: Limits  # of cell 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    expected: int = 0
    last: ExecResult | None = None
    session: Session | None = None
    idle_since: float = 0.0
    expiry: asyncio.TimerHandle | None = None

    def as_held(self, request: ExecRequest) -> ExecRequest:
        """The request with the limits that it is really held to."""
        if request.limits is self.limits or request.limits == self.limits:
            return request
        limits = request.limits.model_copy(update={name: getattr(self.limits, name) for name in _OF_CELL_0})
        return request.model_copy(update={"limits": limits})

    def earlier_answer(self, request: ExecRequest) -> ExecResult | None:
        """The answer of a cell that came again; None if this one is next. Raises where it is neither."""
        if request.cell == self.expected:
            return None
        if self.last and request.cell == self.expected - 1:
            return self.last.model_copy(update={"id": request.id})
        if request.cell == 0:
            raise RequestRefused(f"session {self.name} is in use already: choose another name for a new one")
        raise SessionLost(f"session {self.name} cannot run cell {request.cell}: cell {self.expected} was expected")


class SessionTable:
    """At most `most` sessions, each let go when no cell came for `idle_s` seconds. `start` makes their processes."""

    def __init__(self, start: Start, most: int, idle_s: float) -> None:
        self._start, self._most, self._idle_s = start, most, idle_s
        self._entries: dict[str, _Entry] = {}
        self._gone: OrderedDict[str, str] = OrderedDict()  # name -> why
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def count(self) -> int:
        """Sessions that hold variables now."""
        return sum(entry.session is not None and not entry.session.ended for entry in self._entries.values())

    async def run(self, request: ExecRequest, queued_s: float) -> ExecResult:
        """Run a cell when its turn has come; `queued_s` is how long it waited before. Raises `SessionLost`,
        `SandboxBusy` (`most` sessions are open), `RequestRefused` (the name is taken), or what `start` raises.
        """
        loop = asyncio.get_running_loop()
        since = loop.time() - queued_s
        entry = self._entry_of(request)
        async with entry.turn:
            self._must_be_here(entry)
            if answer := entry.earlier_answer(request):
                return answer
            try:
                return await self._next_cell(entry, request, since)
            finally:
                entry.idle_since = loop.time()
                if not entry.expiry:
                    self._watch_idleness(entry)

    async def end(self, name: str) -> None:
        """Let a session go; its running cell and those that wait get `SessionLost`. An unknown one is no error."""
        if entry := self._entries.get(name):
            self._drop(entry, "it was ended")

    async def close(self) -> None:
        """The same for all, for good; returns when their processes are gone. May be called twice."""
        self._closed = True
        for entry in list(self._entries.values()):
            self._drop(entry, "the sandbox was closed")
        await asyncio.gather(*self._closing)

    def _entry_of(self, request: ExecRequest) -> _Entry:
        name = request.session
        assert name is not None
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        if name in self._gone:
            raise SessionLost(self._gone[name])
        if entry := self._entries.get(name):
            return entry
        if request.cell:
            raise SessionLost(f"session {name} is not known here: its cell 0 has to come before cell {request.cell}")
        if len(self._entries) >= self._most:
            raise SandboxBusy(f"no room for session {name}: all {self._most} are taken")
        entry = self._entries[name] = _Entry(name, request.limits)
        return entry

    def _must_be_here(self, entry: _Entry) -> None:
        if self._entries.get(entry.name) is not entry:
            raise SessionLost(self._gone.get(entry.name, f"session {entry.name} could not be opened"))

    async def _next_cell(self, entry: _Entry, request: ExecRequest, since: float) -> ExecResult:
        note = self._bury(entry)
        session = entry.session or await self._begin(entry)
        queued_s = asyncio.get_running_loop().time() - since  # the wait for a process counts
        try:
            result = await session.run(entry.as_held(request), queued_s)
        except (CallLost, OSError) as error:
            self._drop(entry, str(error))
            raise SessionLost(self._gone[entry.name]) from error
        except BaseException:
            entry.session = None
            self._drop(entry, "one of its cells was cancelled")
            await asyncio.wait([self._release(session)])
            raise
        self._must_be_here(entry)
        if not result.session_kept:
            entry.session = None
            self._release(session)
        if note:
            result = result.model_copy(update={"detail": f"{note} {result.detail}".rstrip()})
        entry.expected += 1
        entry.last = result
        return result

    def _bury(self, entry: _Entry) -> str:
        """If its process ended between two cells: make room for a new one, and say so. Raises `SessionLost` if that
        was our fault or the machine's; what its own threads did is the session's affair, as an `os._exit` is.
        """
        session = entry.session
        if session is None or not session.ended:
            return ""
        try:
            how = session.epitaph()
        except CallLost as error:
            self._drop(entry, str(error))
            raise SessionLost(self._gone[entry.name]) from error
        entry.session = None
        self._release(session)
        return f"The process of the session had ended after its last cell ({how}): this one began with fresh variables."

    async def _begin(self, entry: _Entry) -> Session:
        try:
            resident = await self._start(entry.limits)
        except BaseException:
            if not entry.expected:
                self._entries.pop(entry.name, None)  # nothing ran: the name is free
            raise
        session = entry.session = Session(resident)
        if self._entries.get(entry.name) is not entry:
            self._release(session)
        self._must_be_here(entry)
        return session

    def _watch_idleness(self, entry: _Entry) -> None:
        """One timer for many cells, which comes again for what is left where cells came meanwhile."""
        loop = asyncio.get_running_loop()
        left_s = self._idle_s if entry.turn.locked() else entry.idle_since + self._idle_s - loop.time()
        if left_s > 0:
            entry.expiry = loop.call_later(left_s, self._watch_idleness, entry)
        else:
            self._drop(entry, f"no cell came for {self._idle_s:g} s")

    def _drop(self, entry: _Entry, why: str) -> None:
        if self._entries.get(entry.name) is not entry:
            return  # already dropped, for a reason that came first
        del self._entries[entry.name]
        self._gone[entry.name] = f"session {entry.name} is gone: {why}"
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        if entry.session:
            self._release(entry.session)

    def _release(self, session: Session) -> asyncio.Task[None]:
        task = asyncio.create_task(session.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task
