"""The container tier's zygote and children: isolation for machines where we may make no namespace and mount nothing.

Such a machine is a Kubernetes pod with the restricted profile. Without any right a process can still give up its own:
Landlock takes the file system but for the interpreter and one scratch folder, `container_filter` every way to the
network, to other processes and to new ones, the limits of a process memory, CPU time and file size. `full` isolation
is in `jail` and `lockdown`; what this one lacks against it is listed in `conformance.CONTAINER_GAPS`.
"""

import ctypes
import os

from sandbox.backend.forkserver import container_filter, landlock
from sandbox.backend.forkserver import syscalls as sys_
from sandbox.backend.forkserver.jail import visible_directories
from sandbox.backend.forkserver.lockdown import ENVIRONMENT, Descriptors, fixed_limits, own_descriptors, reseed
from sandbox.backend.forkserver.wire import SpawnOrder, ZygoteConfig

LEAST_ABI = 3  # Linux 6.2: before it, files could be truncated past Landlock

_READ = landlock.READ_FILE | landlock.READ_DIR
_OTHER_FILES = {
    "/dev/null": landlock.READ_FILE | landlock.WRITE_FILE,
    **{f"/dev/{name}": landlock.READ_FILE for name in ("zero", "full", "random", "urandom")},
    "/etc/ld.so.cache": landlock.READ_FILE,  # libraries loaded late
}
_M_ARENA_MAX = -8
_zygote_pid = 0  # set by `enter`, for the children to come


def enter(config: ZygoteConfig) -> None:
    """Give up what no child needs. The zygote itself runs no code of others and keeps the file system."""
    sys_.empty_bounding_set()
    sys_.drop_capabilities()
    sys_.forbid_new_privileges()
    sys_.die_with_parent()  # after the credentials: a change of those would undo it
    if os.getppid() != config.supervisor_pid:
        os._exit(1)  # it went before we asked to be told
    sys_.set_dumpable(False)
    os.umask(0o022)
    global _zygote_pid
    _zygote_pid = os.getpid()
    # An arena of 64 MiB of address space for each thread would soon use up a program's limit.
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def lock_down(order: SpawnOrder, fds: Descriptors, seccomp_filter: bytes) -> None:
    """See `lockdown.lock_down`. The scratch folder is made here and removed by the supervisor."""
    sys_.die_with_parent()
    if os.getppid() != _zygote_pid:
        os._exit(1)
    os.setsid()
    os.mkdir(order.scratch, 0o700)
    os.chdir(order.scratch)
    own_descriptors(fds)
    os.environ.clear()
    os.environ.update(ENVIRONMENT | {"HOME": order.scratch, "TMPDIR": order.scratch})
    fixed_limits(order.scratch_bytes)
    reseed()
    confine(order.scratch, seccomp_filter)


def confine(scratch: str, seccomp_filter: bytes) -> None:
    """Give up everything but `scratch`: no way back, for this process and all that it becomes. Raises `OSError`."""
    sys_.forbid_new_privileges()
    sys_.set_dumpable(False)
    version = landlock.abi()
    allowed = dict.fromkeys(visible_directories(), _READ) | _OTHER_FILES
    landlock.restrict(allowed | {scratch: landlock.own_folder(version)}, version)
    own_filter = container_filter.build(os.getpid())
    sys_.install_filter(seccomp_filter)
    sys_.install_filter(own_filter)
