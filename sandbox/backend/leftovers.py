"""What a node leaves on its machine, looked at from outside: two looks, before and after, tell what a program left.

Spares of a node come and go, so they are compared by number and only when things have come to rest. It works for every
backend and tier, and for a node in another process of the same user.
"""

import asyncio
import os
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STEP_S = 0.05
# A node opens the files of its cgroups when it first needs them; pidfds come with zygotes, which start in their time.
_NOT_OF_ONE_CALL = ("/sys/fs/cgroup/", "anon_inode:")


@dataclass(frozen=True)
class Traces:
    """What there is of one node at one moment."""

    processes: int  # descendants of the node, spares and zygotes included
    descriptors: Counter[str]  # open in the node itself, by kind
    mounts: frozenset[str]  # of the machine, but for names of network namespaces
    groups: frozenset[str]  # the node's cgroup folders
    folders: int  # scratch folders of programs: spares have theirs already
    files: frozenset[str]  # what lies in them

    def beyond(self, before: "Traces") -> list[str]:
        """What is here that was not there before, in words."""
        counts = self._counts() - before._counts()
        more = [f"{number} more {what}" for what, number in counts.items()]
        for what in ("mounts", "groups", "files"):
            more += [f"{what}: {name}" for name in sorted(getattr(self, what) - getattr(before, what))]
        return more

    def _counts(self) -> Counter[str]:
        return self.descriptors + Counter({"processes": self.processes, "scratch folders": self.folders})


def look(node: int) -> Traces:
    """The traces of the node with process id `node`."""
    scratch = [*Path(tempfile.gettempdir()).glob(f"starloom-scratch-{node}-*/*")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return Traces(
        processes=len(_offspring(node)),
        descriptors=Counter(name.partition(":[")[0] for name in _open_files(node)),
        mounts=frozenset(mount for mount in mounts if " nsfs " not in mount),
        groups=frozenset(map(str, _groups(node))),
        folders=len(scratch),
        files=frozenset(path for folder in scratch for path in _below(folder)),
    )


async def at_rest(node: int, within_s: float = 10.0) -> Traces:
    """A look when the number of processes and descriptors has not changed for a while: to compare with later."""
    deadline = asyncio.get_running_loop().time() + within_s
    calm, last = 0, look(node)
    while calm < 5 and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_STEP_S)
        now = look(node)
        calm = calm + 1 if not now.beyond(last) and not last.beyond(now) else 0
        last = now
    return last


async def leftovers(node: int, before: Traces, within_s: float = 5.0) -> list[str]:
    """What is there beyond `before`, as soon as that is nothing; else what it still is after `within_s`."""
    deadline = asyncio.get_running_loop().time() + within_s
    while True:
        more = look(node).beyond(before)
        if not more or asyncio.get_running_loop().time() > deadline:
            return more
        await asyncio.sleep(_STEP_S)


def _offspring(root: int) -> set[int]:
    """All living descendants of `root`; zombies count, since somebody forgot to reap them."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        children.setdefault(parent, []).append(int(stat.parent.name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        born = children.get(waiting.pop(), [])
        found.update(born)
        waiting += born
    return found


def _below(folder: Path) -> list[str]:
    """`os.walk` passes over what vanishes while it looks."""
    return [os.path.join(top, name) for top, folders, files in os.walk(folder) for name in (*folders, *files)]


def _open_files(node: int) -> list[str]:
    names = []
    for link in Path(f"/proc/{node}/fd").iterdir():
        with suppress(FileNotFoundError):  # the one we look through, or closed while we looked
            names.append(os.readlink(link))
    return [name for name in names if not name.startswith(_NOT_OF_ONE_CALL)]


def _groups(node: int) -> list[Path]:
    """Its cgroup folders, at the places where nodes make them."""
    own = {line.split(":", 2)[2].lstrip("/") for line in Path("/proc/self/cgroup").read_text().splitlines()}
    top = Path("/sys/fs/cgroup")
    bases = {root / path for root in (top, *top.glob("*")) for path in ("", *own)}
    return [folder for base in bases for folder in base.glob(f"starloom-sandbox-*-{node}-*")]
