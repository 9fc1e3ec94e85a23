"""What every backend offers to a node, and how it says that a call was lost. No backend lives here."""

from typing import Protocol

from sandbox.contract import ExecRequest, ExecResult, SandboxUnavailable


class CallLost(SandboxUnavailable):
    """This one call was lost through our fault (a zygote died): stateless calls may be run again."""


class Backend(Protocol):
    """Runs programs on this machine, at most `slots` at once; more than that wait inside `run`."""

    @property
    def slots(self) -> int:
        """How many programs run at once."""
        ...

    async def start(self) -> None:
        """Make ready. Raises `SandboxUnavailable` that names what is missing."""
        ...

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run one program. Raises `CallLost` or `SandboxUnavailable`; cancelling it kills the program."""
        ...

    async def close(self) -> None:
        """Stop every program and leave nothing behind. May be called twice."""
        ...

    def describe(self) -> str:
        """One line for people: which isolation programs get here."""
        ...
