"""A `Resident` that is a plain interpreter without isolation: for `SubprocessBackend`."""

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from sandbox.backend.capped_pipe import open_pipe
from sandbox.backend.forkserver.lockdown import ENVIRONMENT
from sandbox.contract import Limits, SandboxUnavailable

# The package leaves sys.path and sys.modules again, so that no cell can import what lies beside it.
_BOOT = """
import socket, sys
sys.path.insert(0, sys.argv[1])
from sandbox.backend.sessions.cells import open_streams, serve
del sys.path[0]
for name in [name for name in sys.modules if name.partition(".")[0] == "sandbox"]:
    del sys.modules[name]
open_streams()
serve(socket.socket(fileno=int(sys.argv[2])))
"""
_START = 'ulimit -c 0; ulimit -v "$1"; shift; exec "$@"'
_PACKAGE_ROOT = Path(__file__).parents[3]


class PlainResident:
    """See `Resident`. Its address space is limited, nothing else; processes that leave its group outlive it."""

    address_space_limited = True

    def __init__(self, python: Path, limits: Limits) -> None:
        """Raises `SandboxUnavailable` if the interpreter does not start."""
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._folder = tempfile.TemporaryDirectory(prefix="starloom-")
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        (self.stdout, stdout), (self.stderr, stderr) = open_pipe(), open_pipe()
        try:
            self._process = _launch(python, limits, Path(self._folder.name), theirs.fileno(), stdout, stderr)
        except OSError as error:
            self._release()
            raise SandboxUnavailable(f"cannot start {python}: {error}") from error
        finally:
            theirs.close()
            os.close(stdout)
            os.close(stderr)
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    def kill(self) -> None:
        """See `Resident.kill`."""
        if not self.ended.done():  # so the group is still ours: its leader is not reaped
            with suppress(ProcessLookupError):  # the whole group ended by itself
                os.killpg(self.pid, signal.SIGKILL)

    def arm(self, limits: Limits) -> None:
        """Nothing counts kills for memory here."""

    def oom_killed(self) -> bool:
        """The same."""
        return False

    async def close(self) -> None:
        """See `Resident.close`."""
        self.kill()
        await asyncio.wait([self.ended])
        self._release()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.kill()
        code = self._process.wait()
        self.ended.set_result(-code if code < 0 else code << 8)

    def _release(self) -> None:
        if self.control.fileno() >= 0:
            self.control.close()
            os.close(self.stdout)
            os.close(self.stderr)
            self._folder.cleanup()


def _launch(
    python: Path, limits: Limits, folder: Path, control: int, stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    home = str(folder)
    return subprocess.Popen(
        [
            *("/bin/sh", "-c", _START, "sh", str(limits.memory_mb << 10)),
            *(python, "-I", "-c", _BOOT, _PACKAGE_ROOT, str(control)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=folder,
        env=ENVIRONMENT | {"HOME": home, "TMPDIR": home},
        pass_fds=(control,),
        start_new_session=True,
    )
