"""The jailed parent of all programs: locks itself in, imports, forks one child per order. Runs no code.

Started by `link` with the programs' interpreter and one socket. It is the init of its own pid namespace, so
its death takes every program with it; it dies itself when the socket closes or its parent goes. It must stay
single-threaded, since only the calling thread survives a fork, and holds no secret, since children inherit
all.
"""

import gc
import importlib.util
import os
import select
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from sandbox.backend.forkserver import jail, lockdown, program, seccomp, wire
from sandbox.backend.forkserver import syscalls as sys_
from sandbox.backend.forkserver.wire import Event


class _SetupFailed(Exception):
    """A step towards readiness failed; the text names it."""


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _SetupFailed(f"cannot {name}: {error}") from error


def main(fd: int) -> NoReturn:
    """Become a zygote that talks on `fd`. Never returns."""
    link = socket.socket(fileno=fd)
    try:
        config = wire.decode_config(link.recv(wire.MAX_MESSAGE))
        _enter_jail(link, config)
        with _step("import and warm up the modules of programs"):
            _warm_up(config)
        zygote = _Zygote(link)
    except BaseException as error:  # the supervisor must learn of everything that stops us
        link.send(wire.encode(Event("failed", text=str(error) or repr(error))))
        os._exit(1)
    zygote.serve()


def _enter_jail(link: socket.socket, config: wire.ZygoteConfig) -> None:
    """Returns in the grandchild that lives inside; this process stays outside as its reaper."""
    if config.mapped_ids:
        with _step("make a mount namespace"):
            sys_.unshare(sys_.NEWNS)
        with _step("build the read-only root"):
            jail.enter_root()  # while still root: the interpreter may lie in a directory closed to others
        with _step("make a user namespace"):
            sys_.unshare(sys_.NEWUSER)
        _ask_for_ids(link)
    else:
        with _step("make a user namespace"):
            lockdown.map_own_ids(inside=0)
            sys_.unshare(sys_.NEWNS)
        with _step("build the read-only root"):
            jail.enter_root()
    with _step("make pid, network, ipc and uts namespaces"):
        sys_.unshare(sys_.NEWPID | sys_.NEWNS | sys_.NEWNET | sys_.NEWIPC | sys_.NEWUTS)
    _become_init(link, config.supervisor_pid)
    with _step("mount a private /proc"):
        jail.mount_proc()
    sys_.empty_bounding_set()


def _ask_for_ids(link: socket.socket) -> None:
    with _step("map user ids"):
        link.send(wire.encode(Event("map_ids")))
        if not link.recv(16):
            raise ConnectionError("the supervisor is gone")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


def _become_init(link: socket.socket, supervisor_pid: int) -> None:
    sys_.die_with_parent()
    if os.getppid() != supervisor_pid:
        os._exit(1)  # it went before we asked to be told
    child = os.fork()
    if child:
        link.close()
        os.waitpid(child, 0)
        os._exit(0)
    sys_.die_with_parent()


def _warm_up(config: wire.ZygoteConfig) -> None:
    for name in config.modules:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    for code in config.warm_up:
        exec(compile(code, "warm-up", "exec", dont_inherit=True), {"__name__": "warm_up"})
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandbox"]:
        del sys.modules[name]  # no program should find our package importable
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every shared page


class _Zygote:
    """The serving loop: orders in, children out, their ends reported."""

    def __init__(self, link: socket.socket) -> None:
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            raise _SetupFailed(f"cannot fork safely: a module started {threads - 1} threads")
        self._link = link
        self._filter = seccomp.build()
        self._mapped_bytes = _mapped_bytes()
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, call)
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._say(Event("ready"), os.pidfd_open(os.getpid()))

    def serve(self) -> NoReturn:
        while True:
            for fd, _ in self._poll.poll():
                if fd in self._children:
                    self._reap(fd)
                else:
                    self._take_order()

    def _say(self, event: Event, pidfd: int | None = None) -> None:
        try:
            socket.send_fds(self._link, [wire.encode(event)], [] if pidfd is None else [pidfd])
        except OSError:
            os._exit(0)  # the supervisor is gone, and with us every child goes

    def _take_order(self) -> None:
        message, received, _, _ = socket.recv_fds(self._link, wire.MAX_MESSAGE, wire.MAX_FDS)
        if not message:
            os._exit(0)
        order = wire.decode_order(message)
        try:
            pid = self._fork(order, received)
        except OSError as error:
            self._say(Event("refused", order.call, text=str(error)))
            return
        finally:
            for fd in received:
                os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (pid, order.call)
        self._poll.register(pidfd, select.POLLIN)
        self._say(Event("spawned", order.call), pidfd)

    def _fork(self, order: wire.SpawnOrder, received: list[int]) -> int:
        # Back to our own namespace first: in one whose init has died, fork gives ENOMEM.
        sys_.enter_namespace(self._own_pid_namespace, sys_.NEWPID)
        sys_.unshare(sys_.NEWPID)
        pid = os.fork()
        if not pid:
            self._be_child(order, lockdown.Descriptors.of(received))
        return pid

    def _be_child(self, order: wire.SpawnOrder, fds: lockdown.Descriptors) -> NoReturn:
        report = fds.report
        try:
            source, report = lockdown.lock_down(order, fds, self._filter, self._mapped_bytes)
        except BaseException as error:  # ours, not the program's: told on a pipe that no program ever holds
            _tell((report, 3), f"lockdown failed: {error!r}")
            os._exit(1)
        os.close(report)
        program.run(source)

    def _reap(self, pidfd: int) -> None:
        pid, call = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        self._say(Event("exited", call, wait_status=status, cpu_s=usage.ru_utime + usage.ru_stime))


def _tell(candidates: tuple[int, ...], text: str) -> None:
    """Write to the first descriptor that works: the report may have been moved when the failure came."""
    for fd in candidates:
        try:
            os.write(fd, text.encode())
        except OSError:
            continue
        return


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
