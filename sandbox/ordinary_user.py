"""Becomes an ordinary user and then runs a command: how root sees what a node of such a user could do.

    python -m sandbox.ordinary_user 65534 PATH:PATH... COMMAND...

The paths are what the command needs to read; where they lie below folders that are closed to others, as an interpreter
below /root does, they are shown in a mount namespace of this process alone. The machine is not changed.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

from sandbox.backend.forkserver import syscalls as sys_

_OTHERS_MAY_ENTER = 0o001


def main(uid: int, paths: list[Path], command: list[str]) -> NoReturn:
    """Needs root. Raises `OSError`."""
    sys_.unshare(sys_.NEWNS)
    sys_.mount("", "/", flags=sys_.REC | sys_.PRIVATE)
    closed = {path: outer for path in paths if (outer := _closed_above(path))}
    seen = {path: os.open(path, os.O_PATH) for path in closed}
    for outer in dict.fromkeys(closed.values()):
        sys_.mount("tmpfs", str(outer), "tmpfs", sys_.NOSUID | sys_.NODEV, "size=1m,mode=755")
    for path, fd in seen.items():
        path.mkdir(parents=True, exist_ok=True)
        sys_.mount(f"/proc/self/fd/{fd}", str(path), flags=sys_.BIND | sys_.REC)
        os.close(fd)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execvp(command[0], command)


def _closed_above(path: Path) -> Path | None:
    """The outermost folder on the way to `path` that others may not enter."""
    ways = [*reversed(path.parents), path]
    return next((way for way in ways if not way.stat().st_mode & _OTHERS_MAY_ENTER), None)


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(path) for path in sys.argv[2].split(":")], sys.argv[3:])
