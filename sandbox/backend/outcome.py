"""From the raw facts of a finished program to its `ExecResult`: the one place where a status is decided."""

import os
import re
import signal
from typing import NamedTuple

from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, ProgramError

_CLAIM = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?", re.DOTALL)
_PROGRAM = r"(?:.*/)?main\.py"
_TAIL = 20_000  # characters of stderr searched for a traceback


class Facts(NamedTuple):
    """What was seen from outside of the program."""

    stdout: bytes
    stderr: bytes
    wait_status: int  # as of wait(2)
    wall_s: float
    queued_s: float
    cpu_s: float = 0.0
    stopped_for: ExecStatus | None = None  # why we killed it, if we did
    oom_killed: bool = False  # the memory cgroup's counter rose
    address_space_limited: bool = False  # no cgroup: a MemoryError is then how the limit shows
    why: str = ""  # `stopped_for` in a sentence, if the usual one will not do
    session_kept: bool | None = None  # of a session's cell: whether its process lives on


def result_of(request: ExecRequest, facts: Facts) -> ExecResult:
    """Decide the status and put everything in its place."""
    stderr = facts.stderr.decode("utf-8", "replace")
    error = claimed_error(stderr, None if request.session is None else request.cell)
    code = os.waitstatus_to_exitcode(facts.wait_status)
    status = _status(facts, code, error, request.limits)
    return ExecResult(
        id=request.id,
        status=status,
        stdout=facts.stdout.decode("utf-8", "replace"),
        stderr=stderr,
        exit_code=code if status in (ExecStatus.OK, ExecStatus.ERROR) else None,
        wall_s=facts.wall_s,
        queued_s=facts.queued_s,
        error=error,
        session_kept=facts.session_kept,
        detail=_detail(status, code, facts, request.limits),
    )


def _status(facts: Facts, code: int, error: ProgramError | None, limits: Limits) -> ExecStatus:
    if facts.oom_killed:
        return ExecStatus.MEMORY
    if facts.stopped_for:
        return facts.stopped_for
    if facts.address_space_limited and code == 1 and error and error.type == "MemoryError":
        return ExecStatus.MEMORY
    if code == -signal.SIGXCPU or _killed_for_cpu(code, facts, limits):
        return ExecStatus.TIMEOUT
    if code == -signal.SIGSYS:
        return ExecStatus.KILLED  # the system-call filter
    return ExecStatus.ERROR if code else ExecStatus.OK


def _killed_for_cpu(code: int, facts: Facts, limits: Limits) -> bool:
    """RLIMIT_CPU's own kill. It counts in ticks: on a busy machine wait4 may have seen far less."""
    return code == -signal.SIGKILL and facts.cpu_s >= limits.cpu_s / 2


def killed_from_outside(facts: Facts, limits: Limits) -> bool:
    """True if neither we nor a limit of the program explains its SIGKILL: then the machine did it."""
    code = os.waitstatus_to_exitcode(facts.wait_status)
    explained = facts.stopped_for or facts.oom_killed or _killed_for_cpu(code, facts, limits)
    return code == -signal.SIGKILL and not explained


def _detail(status: ExecStatus, code: int, facts: Facts, limits: Limits) -> str:
    if facts.why and status is facts.stopped_for:
        return facts.why
    match status:
        case ExecStatus.OK:
            return ""
        case ExecStatus.MEMORY:
            return f"The program went over its memory limit, memory_mb = {limits.memory_mb}."
        case ExecStatus.TIMEOUT if facts.stopped_for is None:
            return over_cpu_limit(limits)
        case ExecStatus.TIMEOUT:
            return f"The program ran longer than its limit, wall_s = {limits.wall_s:g}."
        case ExecStatus.OUTPUT_LIMIT:
            return f"The program wrote more than its limit, output_bytes = {limits.output_bytes}."
        case ExecStatus.KILLED:
            return "The program was stopped by the sandbox."
    if code < 0:
        return f"The program died of signal {_signal_name(-code)}."
    return f"The program exited with code {code}."


def over_cpu_limit(limits: Limits) -> str:
    """The sentence for it."""
    return f"The program went over its limit of CPU time, cpu_s = {limits.cpu_s:g}."


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return str(number)


def claimed_error(stderr: str, cell: int | None = None) -> ProgramError | None:
    """The exception at the end of `stderr`, if it ends like an uncaught one. Lines are those of cell `cell`, even if
    the last frame is in a function of an earlier cell.
    """
    tail = stderr[-_TAIL:]
    name = _PROGRAM if cell is None else f"<cell {cell}>"
    frames = rf'^ *File "{name}", line (\d+)'
    if not tail.endswith("\n") or not (lines := [*re.finditer(frames, tail, re.MULTILINE)]):
        return None
    # The claim is the first line at the margin after the last frame; its message may span several lines.
    after = tail[lines[-1].end() :].split("\n")[1:-1]
    start = next((at for at, text in enumerate(after) if text and not text.startswith(" ")), None)
    claim = None if start is None else _CLAIM.fullmatch("\n".join(after[start:]))
    if claim is None:
        return None
    # Frames of libraries may follow it: the program's own last line is what its author can mend.
    return ProgramError(type=claim["type"], message=claim["message"] or "", line=int(lines[-1][1]))
