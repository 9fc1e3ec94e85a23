"""What came of a call, who can run one, and the exception for "we failed".

A status speaks about the program only. When the sandbox itself fails there is no result: `SandboxUnavailable`
is raised, so that no infrastructure fault can be mistaken for a wrong answer.
"""

from enum import StrEnum
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from sandbox.contract.request import ExecRequest


class ExecStatus(StrEnum):
    """How a program ended."""

    OK = "ok"  # exit code 0
    ERROR = "error"  # non-zero exit, or a signal of its own making
    TIMEOUT = "timeout"  # over wall_s or cpu_s
    MEMORY = "memory"  # over memory_mb
    OUTPUT_LIMIT = "output_limit"  # over output_bytes on stdout or stderr
    KILLED = "killed"  # stopped by us for another reason: a forbidden system call, drain, cancel


class ProgramError(BaseModel):
    """The uncaught exception at the end of stderr: the program's own claim, which decides no status."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = Field(description="Class of the exception, as printed.")
    message: str = Field(description="Its text; empty if it has none.")
    line: int | None = Field(description="1-based line of the program that raised it, if the traceback says.")


class ExecResult(BaseModel):
    """What a program did, as seen from outside of it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(description="The request's id.")
    status: ExecStatus = Field(description="How the program ended.")
    stdout: str = Field(description="What it wrote, up to output_bytes; bytes that are not UTF-8 are replaced.")
    stderr: str = Field(description="The same for stderr, tracebacks included.")
    exit_code: int | None = Field(
        description="Exit code, -N for signal N; null if the program did not end by itself.",
    )
    wall_s: float = Field(description="Seconds from the start of the program to its end.")
    queued_s: float = Field(description="Seconds that the call waited for a free slot.")
    error: ProgramError | None = Field(description="What the tail of stderr claims; null without a traceback.")
    session_kept: bool | None = Field(
        default=None,
        description="Whether the session's variables are still there for its next cell; null without a session.",
    )
    node: str = Field(default="", description="Name of the node that ran it.")
    detail: str = Field(default="", description="One sentence for people; names the limit that was hit.")


class SandboxUnavailable(Exception):
    """The sandbox could not run the call: our failure, and never a verdict on the program."""


class SandboxBusy(SandboxUnavailable):
    """Not started, for want of room: the queue is full, or `queue_s` is over. Nothing ran; it may be tried later."""


class SessionLost(SandboxUnavailable):
    """The state of this session is gone, through no doing of its programs: open a new one, with another name."""


class RequestRefused(ValueError):
    """The request itself is wrong, so that submitting it again is no use; the message says what to change."""


class Executor(Protocol):
    """Anything that runs programs: the client of a cluster, or a fake in a test."""

    async def execute(self, request: ExecRequest) -> ExecResult:
        """Run one program to its end. Raises `SandboxUnavailable` when the sandbox itself fails, among it
        `SandboxBusy` (nothing ran) and `SessionLost` (its variables are gone).

        A sandbox behind a socket raises `RequestRefused` for a request that is too large to be sent.
        """
        ...
