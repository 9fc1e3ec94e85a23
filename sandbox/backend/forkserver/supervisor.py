"""The fork-server backend: slots, berths, the zygotes and their spare children, run from the caller's event loop.

It stays outside of the jail and owns all that programs must not: deadlines, byte caps, the kill, the verdict.
"""

import asyncio
import os
import platform
import sys
from functools import partial
from pathlib import Path

from sandbox.backend import tiers
from sandbox.backend.forkserver import berths
from sandbox.backend.forkserver.berths import Berths
from sandbox.backend.forkserver.call import run_in
from sandbox.backend.forkserver.cgroups import CgroupTree
from sandbox.backend.forkserver.child import Child, SpareGone
from sandbox.backend.forkserver.link import ZygoteLink
from sandbox.backend.forkserver.presets import HEAVY, LIGHT, PRESETS, Preset, preset_for
from sandbox.backend.forkserver.scratch import ScratchRoot
from sandbox.backend.forkserver.spares import Spares, release_when_ended
from sandbox.backend.forkserver.zygotes import Zygotes
from sandbox.backend.sessions.table import SessionTable
from sandbox.backend.tiers import JailedTier
from sandbox.contract import ExecRequest, ExecResult, Limits, SandboxUnavailable, Tier

_MOST_SPARES = 16  # of one kind: more than that cannot be forked before the first of them is used


class ForkserverBackend:
    """Runs each program in a fresh, locked-down fork of a warm zygote of the interpreter `python`.

    tier: isolation to insist on; None: the strongest that this machine allows. spares: children of each kind that wait
    ready; None: as many as slots, up to 16. zygotes: of each kind; None: one for every two cores. most_forks: after so
    many children a zygote is replaced.
    """

    def __init__(
        self,
        python: Path,
        slots: int,
        *,
        tier: Tier | None = None,
        spares: int | None = None,
        zygotes: int | None = None,
        most_forks: int = 5000,
        most_sessions: int = 1000,
        session_idle_s: float = 600,
    ) -> None:
        self._spares_of_each = min(slots, _MOST_SPARES) if spares is None else spares
        self._most_berths = slots + most_sessions + len(PRESETS) * self._spares_of_each
        if slots < 1 or self._most_berths > berths.MOST:
            raise ValueError(f"slots must be at least 1, and with sessions and spares at most {berths.MOST}: {slots=}")
        self.slots = slots
        self._python, self._wanted = python, tier
        self._zygotes_of_each = zygotes or max(1, (os.cpu_count() or 1) // 2)
        self._most_forks = most_forks
        self._tier: JailedTier | None = None
        self._free = asyncio.Semaphore(slots)
        self._cgroups: CgroupTree | None = None
        self._scratch: ScratchRoot | None = None
        self._berths: Berths | None = None
        self._zygotes: dict[Preset, Zygotes] = {}
        self._spares: dict[Preset, Spares] = {}
        self._links: set[ZygoteLink] = set()
        self._family: set[Child] = set()
        self._table = SessionTable(self._start_session, most_sessions, session_idle_s)
        self._closed = False

    @property
    def tier(self) -> Tier:
        """Isolation of the programs, once it was started; before that, what was asked for."""
        return self._tier or self._wanted or "none"

    @property
    def sessions(self) -> int:
        """Sessions that hold variables now."""
        return self._table.count

    async def start(self) -> None:
        """Returns when light programs can run; the other zygotes come up behind it, and programs wait for theirs.

        Raises `SandboxUnavailable` that names what the machine lacks.
        """
        _require_platform()
        self._tier = await tiers.choose(self._python, self._wanted)
        try:
            self._open_places()
            await self._zygotes[LIGHT].start()
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"cannot make the places of programs: {error}") from error
            raise
        for zygotes in self._zygotes.values():
            zygotes.begin()

    def _open_places(self) -> None:
        if self._tier == "full":
            self._cgroups = CgroupTree.open()
        else:
            self._scratch = ScratchRoot.open()
        self._berths = Berths(self._most_berths, self._cgroups, self._scratch)
        for preset in PRESETS:
            zygotes = Zygotes(partial(self._launch, preset), self._zygotes_of_each, self._most_forks)
            self._zygotes[preset] = zygotes
            self._spares[preset] = Spares(zygotes, self._berths, self._spares_of_each, self._family)

    async def _launch(self, preset: Preset) -> ZygoteLink:
        assert self._tier
        link = ZygoteLink(preset, self._python, self._tier, on_gone=self._links.discard)
        self._links.add(link)
        try:
            await link.start()
        except OSError as error:
            self._links.discard(link)
            raise SandboxUnavailable(f"cannot start {self._python}: {error}") from error
        return link

    async def run(self, request: ExecRequest) -> ExecResult:
        """See `Backend.run`."""
        loop = asyncio.get_running_loop()
        waiting_since = loop.time()
        async with self._free:
            if self._closed:
                raise SandboxUnavailable("the sandbox is closed")
            queued_s = loop.time() - waiting_since
            if request.session is not None:
                return await self._table.run(request, queued_s)
            return await self._run_program(request, queued_s)

    async def end_session(self, session: str) -> None:
        """See `Backend.end_session`."""
        await self._table.end(session)

    async def close(self) -> None:
        """Kill the zygotes, and programs with them; wait until all are gone; remove what was made for them."""
        self._closed = True
        await self._table.close()
        for zygotes in self._zygotes.values():
            await zygotes.close()
        links = list(self._links)
        for link in links:
            link.kill()
        await asyncio.gather(*(link.gone for link in links))
        for spares in self._spares.values():
            spares.discard()
        await asyncio.gather(*(child.released for child in self._family))
        if self._berths:
            await self._berths.settled()
        if self._scratch:
            await self._scratch.close()
            self._scratch = None
        if self._cgroups:
            await self._cgroups.close()
            self._cgroups = None

    def describe(self) -> str:
        """One line for people."""
        memory = (
            f"memory and processes limited by cgroups v{self._cgroups.version}"
            if self._cgroups
            else "memory limited per process only (no writable cgroup)"
        )
        if self._tier == "container":
            return f"container isolation: landlock, seccomp, no new processes; {memory}; {self.slots} slots"
        user = "own user id per program" if os.geteuid() == 0 else "started by an ordinary user"
        return f"full isolation: namespaces, read-only root, seccomp, {user}; {memory}; {self.slots} slots"

    def zygote_pids(self) -> dict[str, int]:
        """Process ids of zygotes that are ready, one of each preset: for operators and tests."""
        return {link.preset.name: link.pid for link in self._links if link.alive}

    async def _run_program(self, request: ExecRequest, queued_s: float) -> ExecResult:
        spares = self._spares[preset_for(request.code)]
        child = await spares.take(request.limits.scratch_mb)
        try:
            return await run_in(child, request, queued_s)
        except SpareGone:
            return await self._run_program(request, queued_s)
        except OSError as error:
            raise SandboxUnavailable(f"cannot set the limits of a program: {error}") from error
        finally:
            release_when_ended(child)
            asyncio.get_running_loop().call_soon(spares.refill)

    async def _start_session(self, limits: Limits) -> Child:
        spares = self._spares[HEAVY]  # its later cells may import anything
        child = await spares.take(limits.scratch_mb)
        try:
            await child.ready()
            child.host_session(limits)
        except BaseException as error:
            release_when_ended(child)
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"cannot set the limits of a session: {error}") from error
            raise
        finally:
            asyncio.get_running_loop().call_soon(spares.refill)
        return child


def _require_platform() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SandboxUnavailable("the jailed sandbox needs Linux on x86-64")
    for call in ("pidfd_open", "memfd_create"):
        if not hasattr(os, call):
            raise SandboxUnavailable(f"this Python was built without os.{call}")
