"""Sits the exams of this machine: what it allows, then each tier in earnest, and that nothing is left behind.

It starts backends of its own and touches no running node. Knows nothing of terminals: `commands.selfcheck` shows it.
"""

import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sandbox.backend import conformance
from sandbox.backend.forkserver.supervisor import ForkserverBackend
from sandbox.backend.leftovers import at_rest, leftovers, look
from sandbox.backend.sessions import exam as session_exam
from sandbox.backend.sessions.exam import SESSION_BEHAVIOUR, SESSION_HOSTILE, SessionCheck
from sandbox.backend.tiers import PRIMITIVES, JailedTier, Machine
from sandbox.contract import ExecRequest, SandboxUnavailable

_SLOTS = 2


@dataclass(frozen=True)
class Verdict:
    """One check: its complaint is empty where it passed."""

    part: str  # "program", "session", "gap" (known, and still there) or "nothing left"
    name: str
    complaint: str = ""


@dataclass
class TierReport:
    """What came of one tier."""

    tier: JailedTier
    isolation: str = ""  # in one line, for people; empty if it could not be had
    unavailable: str = ""  # why it could not be had
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def failures(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.complaint]


@dataclass
class Report:
    """One user's view of the machine."""

    user_id: int
    python: str
    machine: Machine
    tiers: list[TierReport] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if some tier could be had and none failed a check."""
        return any(tier.isolation for tier in self.tiers) and not any(tier.failures for tier in self.tiers)

    def to_json(self) -> dict[str, Any]:
        """For `--json` and for the same command run under another user id."""
        primitives = [
            {"name": each.name, "tiers": each.tiers, "lacks": self.machine.findings[each.name], "mend": each.mend}
            for each in PRIMITIVES
        ]
        return {
            "user_id": self.user_id,
            "kernel": platform.release(),
            "python": self.python,
            "primitives": primitives,
            "memory_by_cgroup": self.machine.memory_by_cgroup,
            "tiers": [asdict(tier) for tier in self.tiers],
            "passed": self.passed,
        }


def checks_of(tier: JailedTier, machine: Machine) -> int:
    """How many verdicts a tier gets, for a progress bar."""
    return len(_exam(tier, machine)) + len(conformance.gaps(tier)) + len(_session_exam(tier)) + 1


def _exam(tier: JailedTier, machine: Machine) -> tuple[conformance.Check, ...]:
    by_cgroup = tier == "full" and machine.memory_by_cgroup
    return conformance.exam(tier) + ((conformance.MEMORY_OF_MANY,) if by_cgroup else ())


def _session_exam(tier: JailedTier) -> tuple[SessionCheck, ...]:
    everything = SESSION_BEHAVIOUR + SESSION_HOSTILE
    return tuple(check for check in everything if tier == "full" or not check.forks)


async def check_machine(
    python: Path, machine: Machine, tiers: tuple[JailedTier, ...], done: Callable[[Verdict], object]
) -> Report:
    """Sit the exam of each tier that this machine allows; `done` hears of every verdict as it comes."""
    report = Report(os.geteuid(), str(python), machine)
    for tier in tiers:
        report.tiers.append(await _check_tier(python, machine, tier, done))
    return report


async def _check_tier(
    python: Path, machine: Machine, tier: JailedTier, done: Callable[[Verdict], object]
) -> TierReport:
    report = TierReport(tier)

    def note(verdict: Verdict) -> None:
        report.verdicts.append(verdict)
        done(verdict)

    if machine.missing(tier):
        report.unavailable = machine.complaint(tier)
        return report
    before = look(os.getpid())
    try:
        await _sit(ForkserverBackend(python, _SLOTS, tier=tier), report, machine, note)
    except SandboxUnavailable as error:
        note(Verdict("program", "the sandbox itself", str(error)))
    note(Verdict("nothing left", "after the node", "; ".join(await leftovers(os.getpid(), before))))
    return report


async def _sit(
    backend: ForkserverBackend, report: TierReport, machine: Machine, note: Callable[[Verdict], None]
) -> None:
    """Raises `SandboxUnavailable`, also when it stops half-way."""
    await backend.start()
    try:
        report.isolation = backend.describe()
        await _sit_programs(backend, _exam(report.tier, machine), conformance.gaps(report.tier), note)
        for session in _session_exam(report.tier):
            complaints = await session_exam.failures(backend.run, backend.end_session, (session,))
            note(Verdict("session", session.name, "; ".join(complaints)))
    finally:
        await backend.close()


async def _sit_programs(
    backend: ForkserverBackend,
    exam: tuple[conformance.Check, ...],
    gaps: tuple[conformance.Check, ...],
    note: Callable[[Verdict], None],
) -> None:
    for name in ("sys", "numpy", "sympy", "scipy"):
        await backend.run(ExecRequest(code=f"import {name}"))  # so that spares of each kind are there to compare with
    quiet = await at_rest(os.getpid())
    async for check, complaint in conformance.sit(backend.run, exam):
        note(Verdict("program", check.name, complaint or "; ".join(await leftovers(os.getpid(), quiet))))
    async for check, complaint in conformance.sit(backend.run, gaps):
        note(Verdict("gap", check.name, "" if complaint else "passes by now, so it is no gap any more"))
