"""The fork-server backend: slots, their cgroups and the zygotes, run from the caller's event loop.

It stays outside of the jail and owns all that programs must not: deadlines, byte caps, the kill, the verdict.
"""

import asyncio
import math
import os
import platform
import sys
from functools import partial
from pathlib import Path

from sandbox.backend.forkserver.call import Call, Ended
from sandbox.backend.forkserver.cgroups import CgroupTree, SlotGroup
from sandbox.backend.forkserver.link import ZygoteLink
from sandbox.backend.forkserver.presets import HEAVY, LIGHT, Preset, preset_for
from sandbox.backend.forkserver.wire import SpawnOrder
from sandbox.backend.outcome import Facts, killed_from_outside, result_of
from sandbox.backend.protocol import CallLost
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, SandboxUnavailable

_INODES_PER_MIB = 64
_ZYGOTE_GRACE_S = 10.0  # a call this long past its deadline means that the zygote hangs
_MAX_SLOTS = 1000  # user ids mapped into a zygote's namespace, less root


class ForkserverBackend:
    """Runs each program in a fresh, locked-down fork of a warm zygote of the interpreter `python`."""

    def __init__(self, python: Path, slots: int) -> None:
        if not 1 <= slots <= _MAX_SLOTS:
            raise ValueError(f"slots must be between 1 and {_MAX_SLOTS}, not {slots}")
        self.slots = slots
        self._python = python
        self._as_root = os.geteuid() == 0
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(slots):
            self._free.put_nowait(slot)
        self._groups: dict[int, SlotGroup] = {}
        self._cgroups: CgroupTree | None = None
        self._starting: dict[str, asyncio.Task[ZygoteLink]] = {}
        self._links: set[ZygoteLink] = set()
        self._running: set[asyncio.Task[ExecResult]] = set()
        self._closed = False

    async def start(self) -> None:
        """Start both zygotes at once. Raises `SandboxUnavailable` that names what the machine lacks."""
        _require_platform()
        self._cgroups = CgroupTree.open()
        try:
            if self._cgroups:
                self._groups = {slot: self._cgroups.slot_group(slot) for slot in range(self.slots)}
            await asyncio.gather(self._zygote(LIGHT), self._zygote(HEAVY))
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"cannot make the cgroups of {self.slots} slots: {error}") from error
            raise

    async def run(self, request: ExecRequest) -> ExecResult:
        """See `Backend.run`."""
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        waiting_since = asyncio.get_running_loop().time()
        slot = await self._free.get()
        queued_s = asyncio.get_running_loop().time() - waiting_since
        # A task of its own: if the caller is cancelled, the slot stays taken until its program is dead.
        task = asyncio.create_task(self._run_in(slot, request, queued_s))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def close(self) -> None:
        """Kill the zygotes, and programs with them; wait until all are gone; remove the cgroups."""
        self._closed = True
        for task in self._starting.values():
            task.cancel()
        await asyncio.gather(*self._starting.values(), return_exceptions=True)
        links = list(self._links)
        for link in links:
            link.kill()
        await asyncio.gather(*(link.gone for link in links))
        await asyncio.gather(*self._running, return_exceptions=True)
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
        user = "own user id per slot" if self._as_root else "started by an ordinary user"
        return f"full isolation: namespaces, read-only root, seccomp, {user}; {memory}; {self.slots} slots"

    def zygote_pids(self) -> dict[str, int]:
        """Process ids of the zygotes that are ready, by preset: for operators and tests."""
        return {link.preset.name: link.pid for link in self._links if link.alive}

    async def _run_in(self, slot: int, request: ExecRequest, queued_s: float) -> ExecResult:
        try:
            link = await self._zygote(preset_for(request.code))
            call = _open_call(request, link)
            group = self._groups.get(slot)
            try:
                if group:
                    group.arm(request.limits)
                link.submit(call, partial(self._order, slot, request.limits), group.join_fds if group else ())
            except OSError as error:
                call.lost(f"cannot set the limits of slot {slot}: {error}")
            ended = await _outlive_cancellation(call)
            facts = _facts(call, ended, group, queued_s)
            if killed_from_outside(facts, request.limits):  # an init cannot be killed from inside
                raise CallLost("the program was killed from outside: the machine may be out of memory")
            return result_of(request, facts)
        finally:
            self._free.put_nowait(slot)

    def _order(self, slot: int, limits: Limits, number: int) -> SpawnOrder:
        by_cgroup = self._cgroups is not None
        return SpawnOrder(
            call=number,
            uid=slot + 1 if self._as_root else 0,
            cpu_s=math.ceil(limits.cpu_s),
            scratch_bytes=limits.scratch_mb << 20,
            scratch_inodes=limits.scratch_mb * _INODES_PER_MIB,
            address_space_bytes=0 if by_cgroup else limits.memory_mb << 20,
            processes=0 if by_cgroup else limits.processes,
        )

    async def _zygote(self, preset: Preset) -> ZygoteLink:
        """The living zygote of this kind; starts one if there is none. Raises `SandboxUnavailable`."""
        if self._closed:
            raise SandboxUnavailable("the sandbox is closed")
        task = self._starting.get(preset.name)
        if task is None:
            task = self._starting[preset.name] = asyncio.create_task(self._start_zygote(preset))
        try:
            link = await asyncio.shield(task)
        except SandboxUnavailable:
            self._forget(preset, task)  # the next call tries anew
            raise
        if link.alive:
            return link
        self._forget(preset, task)
        return await self._zygote(preset)

    def _forget(self, preset: Preset, task: asyncio.Task[ZygoteLink]) -> None:
        if self._starting.get(preset.name) is task:
            del self._starting[preset.name]

    async def _start_zygote(self, preset: Preset) -> ZygoteLink:
        link = ZygoteLink(preset, self._python, self._as_root, on_gone=self._links.discard)
        self._links.add(link)
        try:
            await link.start()
        except OSError as error:
            self._links.discard(link)
            raise SandboxUnavailable(f"cannot start {self._python}: {error}") from error
        return link


def _open_call(request: ExecRequest, link: ZygoteLink) -> Call:
    try:
        return Call(request, give_up=link.kill, grace_s=_ZYGOTE_GRACE_S)
    except OSError as error:
        raise SandboxUnavailable(f"cannot open the pipes of a call: {error}") from error


async def _outlive_cancellation(call: Call) -> Ended:
    """Wait for the end; when cancelled, kill the program, wait all the same, and only then be cancelled."""
    try:
        return await asyncio.shield(call.ended)
    except asyncio.CancelledError:
        call.stop(ExecStatus.KILLED)
        await asyncio.wait([call.ended])
        if not call.ended.cancelled():
            call.ended.exception()  # seen: nobody is left to be told
        raise


def _facts(call: Call, ended: Ended, group: SlotGroup | None, queued_s: float) -> Facts:
    return Facts(
        stdout=ended.stdout,
        stderr=ended.stderr,
        wait_status=ended.wait_status,
        wall_s=ended.wall_s,
        queued_s=queued_s,
        cpu_s=ended.cpu_s,
        stopped_for=call.stopped_for,
        oom_killed=group is not None and group.oom_killed(),
        address_space_limited=group is None,
    )


def _require_platform() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SandboxUnavailable("the jailed sandbox needs Linux on x86-64")
    for call in ("pidfd_open", "memfd_create"):
        if not hasattr(os, call):
            raise SandboxUnavailable(f"this Python was built without os.{call}")
