"""Which isolation this machine allows, what each tier needs, and what mends a machine that lacks something.

Nothing is concluded from versions or rights: `forkserver.probe` tries every primitive in throw-away processes of the
programs' own interpreter, which takes about 0.1 s and leaves nothing. How the tiers are built is not said here.
"""

import asyncio
import json
from asyncio.subprocess import PIPE
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandbox.backend.forkserver.cgroups import CgroupTree
from sandbox.contract import SandboxUnavailable, Tier

JailedTier = Literal["full", "container"]
JAILED: tuple[JailedTier, ...] = ("full", "container")  # strongest first

_PACKAGE_ROOT = Path(__file__).parents[2]
_BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from sandbox.backend.forkserver import probe
probe.main()
"""
_PROBE_S = 30.0  # a cold disk and a busy machine
_RIGHTS = (
    "allow user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns=0; in a "
    "container a seccomp profile that lets unshare, mount and pivot_root through), or start the node as root with "
    "CAP_SYS_ADMIN"
)
_WHOLE_PROC = "let the container see an unmasked /proc (Kubernetes: procMount: Unmasked and hostUsers: false)"
_KERNEL = "Linux 6.2 or newer with landlock in its `lsm=` list"


@dataclass(frozen=True)
class Primitive:
    """Something that the kernel must let us do."""

    name: str  # the probe's finding
    tiers: tuple[JailedTier, ...]
    stops: str  # what it is for
    mend: str


_FULL: tuple[JailedTier, ...] = ("full",)
_CONTAINER: tuple[JailedTier, ...] = ("container",)
PRIMITIVES = (
    Primitive("user namespace", _FULL, "programs under our user id", _RIGHTS),
    Primitive("mount namespace", _FULL, "mounts that others see", _RIGHTS),
    Primitive("pid namespace", _FULL, "daemons, signals to others", _RIGHTS),
    Primitive("network namespace", _FULL, "network, local services", _RIGHTS),
    Primitive("ipc namespace", _FULL, "shared memory with others", _RIGHTS),
    Primitive("uts namespace", _FULL, "changing the host name", _RIGHTS),
    Primitive("read-only root", _FULL, "the machine's files", _RIGHTS),
    Primitive("private /proc", _FULL, "looking at other processes", _WHOLE_PROC),
    Primitive("scratch with a quota", _FULL, "filling the disk", _RIGHTS),
    Primitive("system-call filter", JAILED, "the kernel's rarer doors", "a kernel with CONFIG_SECCOMP_FILTER"),
    Primitive("landlock", _CONTAINER, "the machine's files", _KERNEL),
    Primitive("files of its own", _CONTAINER, "all but one folder", f"{_KERNEL}; a writable $TMPDIR"),
)


@dataclass(frozen=True)
class Machine:
    """What was found: for each primitive's name what the kernel said, empty where it works."""

    findings: dict[str, str]
    memory_by_cgroup: int | None  # version of the cgroups that we may use; None: limits are per process only

    def missing(self, tier: JailedTier) -> list[Primitive]:
        """What stands between this machine and `tier`; empty: it can be had."""
        return [each for each in PRIMITIVES if tier in each.tiers and self.findings[each.name]]

    def tier(self, wanted: Tier | None = None) -> JailedTier:
        """`wanted`, or the strongest that can be had. Raises `SandboxUnavailable` that says what is missing."""
        if wanted == "none":
            raise SandboxUnavailable("the tier must be full or container: there is no jail without isolation")
        asked = JAILED if wanted is None else (wanted,)
        if possible := [tier for tier in asked if not self.missing(tier)]:
            return possible[0]
        raise SandboxUnavailable("\n".join(self.complaint(tier) for tier in asked))

    def complaint(self, tier: JailedTier) -> str:
        """For people: what `tier` lacks, a line for each missing primitive, and what would mend it."""
        missing = self.missing(tier)
        lines = [f"  {each.name}: {self.findings[each.name]}" for each in missing]
        mends = dict.fromkeys(f"  to mend it: {each.mend}" for each in missing)
        return "\n".join([f"the {tier} tier is not possible on this machine:", *lines, *mends])


async def choose(python: Path, wanted: Tier | None = None) -> JailedTier:
    """The tier to run programs in with the interpreter `python`: see `Machine.tier`. Raises `SandboxUnavailable`."""
    return (await examine(python)).tier(wanted)


async def examine(python: Path) -> Machine:
    """Try everything. Raises `SandboxUnavailable` if `python` cannot even be asked."""
    return Machine(await _probe(python), await _cgroup_version())


async def _probe(python: Path) -> dict[str, str]:
    try:
        child = await asyncio.create_subprocess_exec(python, "-I", "-c", _BOOT, _PACKAGE_ROOT, stdout=PIPE, stderr=PIPE)
    except OSError as error:
        raise SandboxUnavailable(f"cannot start {python}: {error}") from error
    try:
        out, complaint = await asyncio.wait_for(child.communicate(), _PROBE_S)
    except TimeoutError:
        raise SandboxUnavailable(f"{python} did not answer within {_PROBE_S:g} s what this machine allows") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        text = complaint.decode("utf-8", "replace").strip()
        raise SandboxUnavailable(f"{python} cannot find out what this machine allows: {text}")
    findings: dict[str, str] = json.loads(out)
    return findings


async def _cgroup_version() -> int | None:
    """Make a tree as a node would and take it away again."""
    if tree := CgroupTree.open():
        await tree.close()
        return tree.version
    return None
