"""Memory and process ceilings for each berth through cgroups, version 1 or 2, whichever this machine has.

One directory per supervisor below its own cgroup, one in it per berth. The name carries the owner, so that
what a killed supervisor left is swept by the next one. Placing programs is not done here: the child joins by
itself.
"""

import asyncio
import itertools
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sandbox.contract import Limits

BASE_VARIABLE = "STARLOOM_SANDBOX_CGROUP"
_PREFIX = "starloom-sandbox"
_NAME = re.compile(rf"{_PREFIX}-(?P<namespace>\d+)-(?P<pid>\d+)-(?P<start>\d+)-\d+")
_serial = itertools.count()


class Group(Protocol):
    """The ceilings of one berth; set before each program or session."""

    join_fds: tuple[int, ...]

    def limit(self, limits: Limits) -> None:
        """Set the ceilings, and `arm`. Raises `OSError`."""
        ...

    def arm(self) -> None:
        """Forget what was killed until now. Raises `OSError`."""
        ...

    def oom_killed(self) -> bool:
        """True if the kernel killed something for memory since `arm`."""
        ...

    def close(self) -> None: ...


class _Group:
    """What both versions share: files written only when they change, a counter that only rises."""

    def __init__(self, folders: Iterable[Path], join: str, counter: Path) -> None:
        self._counter = os.open(counter, os.O_RDONLY)
        self._oom_before = 0
        self._written: dict[Path, int] = {}
        self.join_fds = tuple(os.open(folder / join, os.O_WRONLY) for folder in folders)

    def arm(self) -> None:
        self._oom_before = self._oom_count()

    def _write(self, path: Path, value: int) -> None:
        if self._written.get(path) != value:
            path.write_text(str(value))
            self._written[path] = value

    def _oom_count(self) -> int:
        _, _, count = os.pread(self._counter, 1000, 0).partition(b"oom_kill ")
        return int(count.split(maxsplit=1)[0]) if count else 0

    def oom_killed(self) -> bool:
        return self._oom_count() > self._oom_before

    def close(self) -> None:
        for fd in (*self.join_fds, self._counter):
            os.close(fd)


class GroupV1(_Group):
    """A berth's directories in the memory and pids hierarchies."""

    def __init__(self, memory: Path, pids: Path) -> None:
        # `tasks`, not `cgroup.procs`: for a thread that moves itself the kernel takes no global lock.
        super().__init__((memory, pids), "tasks", memory / "memory.oom_control")
        self._memory, self._pids = memory, pids

    def limit(self, limits: Limits) -> None:
        size = limits.memory_mb << 20
        ram, ram_and_swap = (
            self._memory / "memory.limit_in_bytes",
            self._memory / "memory.memsw.limit_in_bytes",
        )
        # The second may never be below the first.
        order = [ram_and_swap, ram] if size > self._written.get(ram, 1 << 62) else [ram, ram_and_swap]
        for path in order:
            if path == ram or path.exists():
                self._write(path, size)
        self._write(self._pids / "pids.max", limits.processes)
        self.arm()


class GroupV2(_Group):
    """A berth's directory in the one hierarchy."""

    def __init__(self, folder: Path) -> None:
        super().__init__((folder,), "cgroup.procs", folder / "memory.events")
        self._folder = folder

    def limit(self, limits: Limits) -> None:
        self._write(self._folder / "memory.max", limits.memory_mb << 20)
        if (swap := self._folder / "memory.swap.max").exists():
            self._write(swap, 0)
        self._write(self._folder / "pids.max", limits.processes)
        self.arm()


class CgroupTree:
    """This supervisor's directories. `open` gives None where the machine lets us have none."""

    def __init__(self, version: int, roots: tuple[Path, ...]) -> None:
        self.version = version
        self._roots = roots
        self._groups: list[Group] = []

    @classmethod
    def open(cls) -> "CgroupTree | None":
        """Sweep what dead supervisors left, then make our own directories."""
        for version, bases in _candidates():
            roots = tuple(base / _own_name() for base in bases)
            try:
                for base in bases:
                    _sweep(base)
                if version == 2:
                    _delegate(bases[0])
                for root in roots:
                    root.mkdir()
                if version == 2:
                    _delegate(roots[0])
            except OSError:  # not ours to write, or in use: try the next place
                _remove(roots)
                continue
            return cls(version, roots)
        return None

    def group(self, berth: int) -> Group:
        """The directories of one berth, made now. Raises `OSError`."""
        folders = [root / f"berth{berth}" for root in self._roots]
        for folder in folders:
            folder.mkdir()
        group = GroupV1(*folders) if self.version == 1 else GroupV2(*folders)
        self._groups.append(group)
        return group

    async def close(self) -> None:
        """Remove our directories. Their processes must be dead; the kernel may need a moment to notice."""
        for group in self._groups:
            group.close()
        self._groups.clear()
        for _ in range(100):
            if _remove(self._roots):
                return
            await asyncio.sleep(0.02)


def _candidates() -> Iterable[tuple[int, tuple[Path, ...]]]:
    """Places to try, with the cgroup version: a place named by the user, then below our own cgroup."""
    if named := os.environ.get(BASE_VARIABLE):
        yield 2, (Path(named),)
        return
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
    v1 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/pids")
    if "memory" in own and "pids" in own:
        yield 1, (v1[0] / own["memory"], v1[1] / own["pids"])
        yield 1, v1  # a container may show our path under a shorter name
    if "" in own:
        yield 2, (Path("/sys/fs/cgroup") / own[""],)


def _delegate(folder: Path) -> None:
    wanted = {"memory", "pids"}
    if not wanted <= set((folder / "cgroup.subtree_control").read_text().split()):
        (folder / "cgroup.subtree_control").write_text("+memory +pids")


def _own_name() -> str:
    return f"{_PREFIX}-{_pid_namespace()}-{os.getpid()}-{_start_time(os.getpid())}-{next(_serial)}"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of `pid`: with the pid, a name that is never used again."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return None


def _sweep(base: Path) -> None:
    """Remove the directories of supervisors that are dead; those of other pid namespaces cannot be judged."""
    for folder in base.glob(f"{_PREFIX}-*"):
        name = _NAME.fullmatch(folder.name)
        if not name or int(name["namespace"]) != _pid_namespace():
            continue
        if _start_time(int(name["pid"])) != int(name["start"]):
            _remove((folder,))


def _remove(roots: Iterable[Path]) -> bool:
    """True if all are gone."""
    gone = True
    for root in roots:
        for folder in (*root.glob("berth*"), root):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:
                gone = False
    return gone
