"""Writing so that a crash or a full disk leaves the old state or the new one, and an error that a person can
act on.

Leaves out what is written: ``event_log.py``, ``trajectories.py``, ``run_folder.py``.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}


class SinkFull(OSError):
    """The run folder's disk (or the owner's quota) is full. Everything written before stands."""

    def __init__(self, folder: Path, code: int) -> None:
        self.folder = folder
        self.free_bytes = shutil.disk_usage(folder).free
        cause = "the quota is used up" if code == errno.EDQUOT else "the disk is full"
        advice = "make room, then resume: nothing written is lost"
        super().__init__(code, f"{folder}: {cause}, {self.free_bytes:,} bytes free; {advice}")


@contextmanager
def naming_full_disk(folder: Path) -> Iterator[None]:
    """Turn "no space left" into ``SinkFull``; any other error passes as it is."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise SinkFull(folder, error.errno) from error
        raise


def fsync_folder(folder: Path) -> None:
    """Make a name that was created or replaced in ``folder`` survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in its place: all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with naming_full_disk(path.parent):
            write(temporary)
            os.fsync(descriptor)
            temporary.chmod(0o644)  # mkstemp gives 0600; a run folder is read by the web as well
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    fsync_folder(path.parent)
