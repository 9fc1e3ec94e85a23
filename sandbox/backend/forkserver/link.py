"""The supervisor's end of one zygote: starts it, orders children, hears of them, notices its death."""

import asyncio
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from sandbox.backend.forkserver import wire
from sandbox.backend.forkserver.child import Child, pid_of
from sandbox.backend.forkserver.lockdown import ENVIRONMENT
from sandbox.backend.forkserver.presets import Preset
from sandbox.backend.forkserver.wire import Event
from sandbox.backend.tiers import JailedTier
from sandbox.contract import SandboxUnavailable

_READY_S = 60.0  # a cold disk and a busy machine; a quiet one takes about a second
_INODES_PER_MIB = 64
_CHILD_FDS = 4
_LOOK_EVERY = 256  # forks between two looks at its memory
_MOST_GROWTH = 1.5
_ENDED = -2  # in place of a pidfd that has been and gone; -1 is one that has not come
_IDS = 65536  # user ids mapped into one zygote's namespace
_FIRST_ID = 1_100_000_000  # far above what people and distributions hand out
_LINK_ALL_NOW = {"LD_BIND_NOW": "1"}  # once here, and not in each child that calls a function first
_PACKAGE_ROOT = Path(__file__).parents[3]
# The package's folder leaves sys.path again, so that programs cannot import what lies beside it.
_BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from sandbox.backend.forkserver.zygote import main
del sys.path[0]
main(int(sys.argv[2]))
"""


class ZygoteLink:
    """One zygote, alive from `start` until `gone` is done; it is never restarted, only replaced."""

    def __init__(self, preset: Preset, python: Path, tier: JailedTier, on_gone: Callable[["ZygoteLink"], None]) -> None:
        self.preset = preset
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pid = 0
        self.forks = 0
        self._python, self._tier, self._on_gone = python, tier, on_gone
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._pidfd = -1
        self._dying = self._retired = False
        self._resident_kb = 0
        self._children: dict[int, Child] = {}
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()

    @property
    def alive(self) -> bool:
        """Takes orders. It may have ended, or be about to, well before `gone` is done."""
        return self._pidfd >= 0 and not (self._dying or self._retired)

    async def start(self) -> None:
        """Returns when programs can run. Raises `SandboxUnavailable` with the step that failed."""
        self._launch()
        self._loop.add_reader(self._socket, self._hear)
        self._loop.add_reader(self._launcher_fd, self._launcher_ended)
        try:
            with suppress(BrokenPipeError):  # already dead: `_launcher_ended` says why
                self._socket.send(wire.encode_config(self._config()))
            await asyncio.wait_for(asyncio.shield(self._ready), _READY_S)
        except BaseException as error:
            self.kill()
            await self.gone
            if isinstance(error, TimeoutError):
                raise SandboxUnavailable(f"the {self.preset.name} zygote was not ready after {_READY_S:g} s") from None
            raise

    def _launch(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._stderr = os.memfd_create("zygote-stderr")
        with theirs, ExitStack() as undo:
            undo.callback(self._close_files)
            self._launcher = subprocess.Popen(
                [self._python, "-I", "-c", _BOOT, _PACKAGE_ROOT, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                env=ENVIRONMENT | _LINK_ALL_NOW,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # a terminal's Ctrl-C is for us to handle
            )
            undo.pop_all()
        self._launcher_fd = os.pidfd_open(self._launcher.pid)

    def _config(self) -> wire.ZygoteConfig:
        return wire.ZygoteConfig(
            supervisor_pid=os.getpid(),
            tier=self._tier,
            mapped_ids=os.geteuid() == 0,
            modules=self.preset.modules,
            warm_up=self.preset.rehearsals(),
        )

    def spawn(self, child: Child) -> None:
        """Order `child` to be forked; it hears of the rest itself."""
        if not self.alive:
            child.lost(f"the {self.preset.name} zygote died")
            return
        self.forks += 1
        self._children[self.forks] = child
        berth = child.berth
        order = wire.SpawnOrder(
            child=self.forks,
            uid=berth.uid if os.geteuid() == 0 else 0,
            scratch_bytes=child.scratch_mb << 20,
            scratch_inodes=child.scratch_mb * _INODES_PER_MIB,
            scratch=berth.scratch,
        )
        self._outbox.append((wire.encode_order(order), berth.group.join_fds if berth.group else ()))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            message, fds = self._outbox[0]
            try:
                socket.send_fds(self._socket, [message], fds)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._flush)
                return
            except OSError:
                self._outbox.clear()  # it is dying; `_zygote_ended` tells the children
                break
            self._outbox.popleft()
        self._loop.remove_writer(self._socket)

    def worn(self, most_forks: int) -> bool:
        """Whether it should be replaced: it forked a lot, or its memory grew, which all its children pay for."""
        if self.forks % _LOOK_EVERY == 0 and self._pidfd >= 0:
            return self.forks >= most_forks or resident_kb(self.pid) > _MOST_GROWTH * self._resident_kb
        return self.forks >= most_forks

    def retire(self) -> None:
        """Take no more orders, and end with the last child."""
        self._retired = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._retired and not self._children:
            self.kill()

    def _hear(self) -> bool:
        """True if there may be more to hear."""
        try:
            message, fds, _, _ = socket.recv_fds(self._socket, wire.MAX_MESSAGE, wire.MAX_FDS)
        except BlockingIOError:
            return False
        except OSError:
            message, fds = b"", []
        if not message:
            self._loop.remove_reader(self._socket)
            self.kill()  # without a socket it is of no use; its end is awaited elsewhere
            return False
        self._on_event(wire.decode_event(message), fds)
        return True

    def _on_event(self, event: Event, fds: list[int]) -> None:
        match event.kind:
            case "map_ids":
                self._map_ids()
            case "ready":
                self._on_ready(fds[0])
            case "failed":
                self._fail_start(event.text)
            case "spawned":
                self._on_spawned(event.child, fds)
            case "exited":
                self._children.pop(event.child).exited(event.wait_status, event.cpu_s)
                self._end_if_unused()
            case "refused":
                self._children.pop(event.child).lost(f"the {self.preset.name} zygote could not fork: {event.text}")
                self._end_if_unused()

    def _on_spawned(self, number: int, fds: list[int]) -> None:
        child = self._children[number]
        if len(fds) == _CHILD_FDS:
            child.spawned(fds)
            return
        for fd in fds:  # some were dropped: without its socket the child ends by itself
            os.close(fd)
        child.lost("this process has no descriptors left for the child of a zygote")

    def _map_ids(self) -> None:
        first = _FIRST_ID + self._launcher.pid % 32768 * _IDS
        try:
            for name in ("uid_map", "gid_map"):
                Path(f"/proc/{self._launcher.pid}/{name}").write_text(f"0 {first} {_IDS}\n")
            self._socket.send(b"mapped")
        except OSError as error:
            self._fail_start(f"cannot map user ids: {error}")

    def _on_ready(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self.pid = pid_of(pidfd)
        self._resident_kb = resident_kb(self.pid)
        self._loop.add_reader(pidfd, self._zygote_ended)
        if not self._ready.done():
            self._ready.set_result(None)

    def _fail_start(self, why: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(SandboxUnavailable(f"the {self.preset.name} zygote {why}"))
            self._ready.exception()  # seen: `start` may have been cancelled

    def kill(self) -> None:
        """End the zygote and all its programs at once; `gone` tells when it is done."""
        self._dying = True
        for fd in (self._pidfd, self._launcher_fd):
            if fd >= 0:
                with suppress(ProcessLookupError):  # already dead
                    signal.pidfd_send_signal(fd, signal.SIGKILL)

    def _launcher_ended(self) -> None:
        """The outer process is gone; before readiness that is all there was."""
        self._loop.remove_reader(self._launcher_fd)
        os.close(self._launcher_fd)
        self._launcher_fd = -1
        self._launcher.wait()
        if self._pidfd < 0:
            self._fail_start(f"ended during its start: {self._complaint()}")
            self._finish()
        else:
            self.kill()
            self._finish_if_all_ended()

    def _zygote_ended(self) -> None:
        """The init of the programs' namespace is dead, and the kernel reaps an init only after all others."""
        while self._hear():
            pass  # what it said before it died still counts
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = _ENDED
        for child in self._children.values():
            child.lost(f"the {self.preset.name} zygote died")
        self._children.clear()
        self._finish_if_all_ended()

    def _finish_if_all_ended(self) -> None:
        if self._launcher_fd < 0 and self._pidfd == _ENDED:
            self._finish()

    def _finish(self) -> None:
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._close_files()
        if not self.gone.done():
            self.gone.set_result(None)
        self._on_gone(self)

    def _close_files(self) -> None:
        self._socket.close()
        os.close(self._stderr)

    def _complaint(self) -> str:
        text = os.pread(self._stderr, 4000, 0).decode("utf-8", "replace").strip()
        return text or f"exit code {self._launcher.returncode}"


def resident_kb(pid: int) -> int:
    """KiB of memory that a process holds; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
