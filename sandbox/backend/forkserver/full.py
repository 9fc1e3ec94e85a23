"""The zygote of the full tier: shuts itself into namespaces of its own, and forks each child into a further one."""

import os
import socket

from sandbox.backend.forkserver import jail, lockdown, wire
from sandbox.backend.forkserver import syscalls as sys_
from sandbox.backend.forkserver.failed_step import step
from sandbox.backend.forkserver.wire import Event


def enter(link: socket.socket, config: wire.ZygoteConfig) -> None:
    """Returns in the grandchild that lives inside; this process stays outside as its reaper."""
    if config.mapped_ids:
        with step("make a mount namespace"):
            sys_.unshare(sys_.NEWNS)
        with step("build the read-only root"):
            jail.enter_root()  # while still root: the interpreter may lie in a directory closed to others
        with step("make a user namespace"):
            sys_.unshare(sys_.NEWUSER)
        _ask_for_ids(link)
    else:
        with step("make a user namespace"):
            lockdown.map_own_ids(inside=0)
            sys_.unshare(sys_.NEWNS)
        with step("build the read-only root"):
            jail.enter_root()
    with step("make pid, network, ipc and uts namespaces"):
        sys_.unshare(sys_.NEWPID | sys_.NEWNS | sys_.NEWNET | sys_.NEWIPC | sys_.NEWUTS)
    _become_init(link, config.supervisor_pid)
    with step("mount a private /proc"):
        jail.mount_proc()
    sys_.empty_bounding_set()


def _ask_for_ids(link: socket.socket) -> None:
    with step("map user ids"):
        link.send(wire.encode_event(Event("map_ids")))
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


class PidNamespaces:
    """Forks children, each the init of its own pid namespace: when it ends, all its processes do."""

    def __init__(self) -> None:
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY)

    def fork(self) -> int:
        """Like os.fork; single-threaded callers only. Raises `OSError`."""
        # Back to our own namespace first: in one whose init has died, fork gives ENOMEM.
        sys_.enter_namespace(self._own, sys_.NEWPID)
        sys_.unshare(sys_.NEWPID)
        return sys_.fork()
