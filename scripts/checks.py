"""What a machine must have before anything is downloaded, and what mends each lack.

`gather` looks at the machine, `problems` judges what it saw: a pure function, so that every message can be
tested without a machine that lacks the thing. All lacks are reported at once.
"""

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

GB = 10**9
MEMORY_GB = 8
DISK_GB = 10  # set-up leaves 4, and needs 2 more while it downloads; the rest is for runs and the database
GLIBC = (2, 28)  # the manylinux_2_28 wheels of torch and pyarrow
AS_NOBODY = ("unshare", "--user", "--map-user=65534", "--map-group=65534")  # as the platform runs Postgres for root


@dataclass(frozen=True)
class Facts:
    """What was seen of the machine."""

    system: str
    machine: str
    glibc: tuple[int, int] | None
    cpu_flags: frozenset[str]
    has_ensurepip: bool
    python_header: Path
    has_python_header: bool
    compiler: str
    has_compiler: bool
    has_libnuma: bool
    is_root: bool
    has_user_namespaces: bool  # asked of root only
    has_own_postgres: bool
    free_memory_bytes: int
    free_disk_bytes: int
    root: Path


def problems(seen: Facts) -> list[str]:
    """Everything that is missing, each with the act that mends it; empty on a good machine."""
    return [*_platform_problems(seen), *_package_problems(seen), *_postgres_problems(seen), *_room_problems(seen)]


def _platform_problems(seen: Facts) -> list[str]:
    found = []
    if (seen.system, seen.machine) != ("Linux", "x86_64"):
        found.append(
            f"this is {seen.system} on {seen.machine}; torch's and vLLM's CPU builds are for x86-64 Linux: "
            "use such a machine, or a container or virtual machine of that kind"
        )
    if seen.system == "Linux" and (seen.glibc is None or seen.glibc < GLIBC):
        version = "another C library" if seen.glibc is None else "glibc {}.{}".format(*seen.glibc)
        found.append(
            f"the system has {version}, but glibc >= 2.28 is needed: use Debian 10, Ubuntu 18.10, RHEL 8 or newer"
        )
    if seen.machine == "x86_64" and "avx2" not in seen.cpu_flags:
        found.append(
            "the CPU shows no AVX2, which vLLM's CPU build needs: use a CPU from 2015 or later "
            "(in a virtual machine, choose the CPU type `host`)"
        )
    return found


def _package_problems(seen: Facts) -> list[str]:
    found = []
    if not seen.has_ensurepip:
        found.append("Python cannot make environments (no ensurepip): apt-get install python3.11-venv")
    if not seen.has_python_header:
        found.append(f"{seen.python_header} is missing, C++ extensions need it: apt-get install python3.11-dev")
    if not seen.has_compiler:
        found.append(f"no C++ compiler (`{seen.compiler}` is not on PATH), DeepSpeed needs one: apt-get install g++")
    if not seen.has_libnuma:
        found.append("libnuma.so.1 is missing, vLLM's CPU build needs it: apt-get install libnuma1")
    return found


def _postgres_problems(seen: Facts) -> list[str]:
    if not seen.is_root or seen.has_user_namespaces or seen.has_own_postgres:
        return []
    return [
        "PostgreSQL refuses to run as root, and a user namespace to run it in is not to be had "
        "(`unshare --user --map-user=65534 --map-group=65534 true` fails): work as an ordinary user, "
        "or apt-get install util-linux and let the container make user namespaces, "
        "or set DATABASE_URL to a PostgreSQL of your own"
    ]


def _room_problems(seen: Facts) -> list[str]:
    found = []
    if seen.free_memory_bytes < MEMORY_GB * GB:
        found.append(
            f"{seen.free_memory_bytes / GB:.1f} GB of memory is free, {MEMORY_GB} GB is needed: "
            "close other programs or raise the container's memory limit"
        )
    if seen.free_disk_bytes < DISK_GB * GB:
        found.append(
            f"{seen.free_disk_bytes / GB:.1f} GB of disk is free at {seen.root}, {DISK_GB} GB is needed: "
            "free some, or move the clone to a larger disk"
        )
    return found


def gather(root: Path) -> Facts:
    """Look at this machine; `root` is the clone, whose disk takes the environments."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    compiler = os.environ.get("CXX", "c++")  # the name by which torch will call it
    return Facts(
        system=platform.system(),
        machine=platform.machine(),
        glibc=glibc_version(),
        cpu_flags=cpu_flags(Path("/proc/cpuinfo")),
        has_ensurepip=importlib.util.find_spec("ensurepip") is not None,
        python_header=header,
        has_python_header=header.is_file(),
        compiler=compiler,
        has_compiler=shutil.which(compiler) is not None,
        has_libnuma=can_load("libnuma.so.1"),
        is_root=os.geteuid() == 0,
        has_user_namespaces=os.geteuid() == 0 and can_run(*AS_NOBODY, "true"),
        has_own_postgres=bool(os.environ.get("DATABASE_URL")),
        free_memory_bytes=free_memory(Path("/proc/meminfo"), Path("/sys/fs/cgroup")),
        free_disk_bytes=shutil.disk_usage(root).free,
        root=root,
    )


def glibc_version() -> tuple[int, int] | None:
    """The version of glibc; None on another C library."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):  # musl and macOS do not know the name
        return None
    major, minor = text.split()[-1].split(".")[:2]
    return int(major), int(minor)


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """The flags of the first CPU; none where /proc does not exist."""
    if not cpuinfo.exists():
        return frozenset()
    lines = cpuinfo.read_text().splitlines()
    return frozenset(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


def can_load(library: str) -> bool:
    """Whether the dynamic loader finds the library, wherever the distribution keeps it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def can_run(*command: str) -> bool:
    """Whether the command is there and succeeds."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def free_memory(meminfo: Path, cgroup: Path) -> int:
    """Bytes available: what the kernel says, capped by the container's own limit (cgroup v2 or v1)."""
    if not meminfo.exists():
        return 0
    lines = meminfo.read_text().splitlines()
    available = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
    return min([available, *container_limits(cgroup)])


def container_limits(cgroup: Path) -> list[int]:
    """The memory limits that the container's files state; none means unlimited."""
    files = (cgroup / "memory.max", cgroup / "memory" / "memory.limit_in_bytes")
    texts = [file.read_text().strip() for file in files if file.is_file()]
    return [int(text) for text in texts if text != "max"]
