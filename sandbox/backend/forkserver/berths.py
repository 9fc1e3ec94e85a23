"""Places for children: a user id, a cgroup and, in the container tier, a scratch folder for each.

A berth is given to one child at a time and comes back when that child is gone for good; the one that has been free for
the longest is given first. Berths are made when they are first needed.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from sandbox.backend.forkserver.cgroups import CgroupTree, Group
from sandbox.backend.forkserver.scratch import ScratchRoot
from sandbox.contract import SandboxBusy, SandboxUnavailable

MOST = 60_000  # user ids mapped into a zygote's namespace, less root and some
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Berth:
    """One place; `scratch` is empty where the child mounts a file system of its own."""

    number: int
    group: Group | None
    scratch: str

    @property
    def uid(self) -> int:
        """User id inside of the zygote's namespace: no two living children share one."""
        return self.number + 1


class Berths:
    """At most `most` places."""

    def __init__(self, most: int, cgroups: CgroupTree | None, scratch: ScratchRoot | None) -> None:
        self._most = most
        self._cgroups, self._scratch = cgroups, scratch
        self._made = 0
        self._free: deque[tuple[int, Group | None]] = deque()
        self._clearing: set[asyncio.Task[None]] = set()

    def take(self) -> Berth:
        """Raises `SandboxBusy` if all are taken, `SandboxUnavailable` if none can be made."""
        number, group = self._free.popleft() if self._free else self._make()
        return Berth(number, group, self._scratch.fresh() if self._scratch else "")

    def _make(self) -> tuple[int, Group | None]:
        if self._made == self._most:
            raise SandboxBusy(f"all {self._most} places for programs and sessions are taken")
        try:
            group = self._cgroups.group(self._made) if self._cgroups else None
        except OSError as error:
            raise SandboxUnavailable(f"cannot make the cgroup of place {self._made}: {error}") from error
        self._made += 1
        return self._made - 1, group

    def give_back(self, berth: Berth) -> None:
        """Its child is gone."""
        if self._scratch:
            task = asyncio.get_running_loop().create_task(self._clear(self._scratch, berth))
            self._clearing.add(task)
            task.add_done_callback(self._clearing.discard)
        else:
            self._free.append((berth.number, berth.group))

    async def _clear(self, scratch: ScratchRoot, berth: Berth) -> None:
        try:
            await scratch.clear(berth.scratch)
        except OSError as error:
            _log.error("cannot remove the folder of a program, %s: %s", berth.scratch, error)
        self._free.append((berth.number, berth.group))

    async def settled(self) -> None:
        """Wait until everything that was given back is free."""
        await asyncio.gather(*self._clearing)
