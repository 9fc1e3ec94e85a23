"""The jailed parent of all programs: locks itself in, imports, forks one child per order. Runs no code.

Started by `link` with the programs' interpreter and one socket. Its death takes every program with it; it dies itself
when the socket closes or its parent goes. It must stay single-threaded, since only the calling thread survives a fork,
and holds no secret, since children inherit all: a program reaches its child without passing here.
"""

import gc
import importlib.util
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from sandbox.backend.forkserver import (
    container,
    full,
    huge_pages,
    jail,
    lockdown,
    program,
    seccomp,
    spare,
    wire,
)
from sandbox.backend.forkserver import syscalls as sys_
from sandbox.backend.forkserver.failed_step import StepFailed, step
from sandbox.backend.forkserver.wire import Event
from sandbox.backend.sessions import cells


def main(fd: int) -> NoReturn:
    """Become a zygote that talks on `fd`. Never returns."""
    link = socket.socket(fileno=fd)
    try:
        config = wire.decode_config(link.recv(wire.MAX_MESSAGE))
        with step("read the system-call filter"):
            seccomp_filter = seccomp.shipped()
        fork, plan = _enter(link, config, seccomp_filter)
        with step("import and warm up the modules of programs"):
            _warm_up(config)
        zygote = _Zygote(link, fork, plan)
    except BaseException as error:  # the supervisor must learn of everything that stops us
        link.send(wire.encode_event(Event("failed", text=str(error) or repr(error))))
        os._exit(1)
    zygote.serve()


def _enter(
    link: socket.socket, config: wire.ZygoteConfig, seccomp_filter: bytes
) -> tuple[Callable[[], int], spare.Plan]:
    """Go into the jail of our tier. How children are forked and locked down there."""
    if config.tier == "container":
        with step("give up our rights"):
            container.enter(config)
        return sys_.fork, lambda order, fds: partial(container.lock_down, order, fds, seccomp_filter)
    full.enter(link, config)
    return full.PidNamespaces().fork, lockdown.LockDown(seccomp_filter, config.mapped_ids).plan


def _warm_up(config: wire.ZygoteConfig) -> None:
    for name in config.modules:
        if importlib.util.find_spec(name.partition(".")[0]):
            importlib.import_module(name)
    for code in config.warm_up:
        exec(compile(code, "warm-up", "exec", dont_inherit=True), {"__name__": "warm_up"})
    cells.rehearse()
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandbox"]:
        del sys.modules[name]  # no program should find our package importable
    os.environ.clear()  # modules may have added to it
    os.environ.update(lockdown.ENVIRONMENT)
    program.prepare(jail.SCRATCH)
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every shared page
    huge_pages.collapse_heap()


class _Zygote:
    """The serving loop: orders in, children out, their ends reported."""

    def __init__(self, link: socket.socket, fork: Callable[[], int], plan: spare.Plan) -> None:
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            raise StepFailed(f"cannot fork safely: a module started {threads - 1} threads")
        self._link = link
        self._fork, self._plan = fork, plan
        self._mapped_bytes = _mapped_bytes()
        self._no_input = os.open("/dev/null", os.O_RDONLY)
        self._children: dict[int, tuple[int, int]] = {}  # pidfd -> (pid, child)
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

    def _say(self, event: Event, *fds: int) -> None:
        try:
            socket.send_fds(self._link, [wire.encode_event(event)], fds)
        except OSError:
            os._exit(0)  # the supervisor is gone, and with us every child goes

    def _take_order(self) -> None:
        message, join, _, _ = socket.recv_fds(self._link, wire.MAX_MESSAGE, wire.MAX_FDS)
        if not message:
            os._exit(0)
        order = wire.decode_order(message)
        try:
            self._spawn(order, tuple(join))
        except OSError as error:
            self._say(Event("refused", order.child, text=str(error)))
        finally:
            _close(*join)

    def _spawn(self, order: wire.SpawnOrder, join: tuple[int, ...]) -> None:
        """Fork a child and hand our ends of its socket and its pipes to the supervisor. Raises `OSError`."""
        opened: list[int] = []
        try:
            opened += (end.detach() for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            opened += os.pipe()
            opened += os.pipe()
            control, its_control, out, its_out, err, its_err = opened
            fds = lockdown.Descriptors(its_control, self._no_input, its_out, its_err, join)
            lock_down = self._plan(order, fds)
            pid = self._fork()
            if not pid:
                spare.live(order, fds, lock_down, self._mapped_bytes)
            pidfd = self._watch(pid, order.child)
            self._say(Event("spawned", order.child), control, out, err, pidfd)
        finally:
            _close(*opened)

    def _watch(self, pid: int, child: int) -> int:
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:  # nobody could ever stop it
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[pidfd] = (pid, child)
        self._poll.register(pidfd, select.POLLIN)
        return pidfd

    def _reap(self, pidfd: int) -> None:
        pid, child = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        self._say(Event("exited", child, status, usage.ru_utime + usage.ru_stime))


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
