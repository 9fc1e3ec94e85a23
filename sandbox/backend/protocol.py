"""What every backend offers to a node, and how it says that a call was lost. No backend lives here."""

from typing import Protocol

from sandbox.contract import ExecRequest, ExecResult, SandboxUnavailable, Tier


class CallLost(SandboxUnavailable):
    """This one call was lost through our fault (a zygote died): stateless calls may be run again."""


class Backend(Protocol):
    """Runs programs on this machine, at most `slots` at once; more than that wait inside `run`."""

    @property
    def slots(self) -> int:
        """How many programs run at once. Sessions that wait for their next cell take no slot."""
        ...

    @property
    def tier(self) -> Tier:
        """Isolation of the programs; known once it was started."""
        ...

    @property
    def sessions(self) -> int:
        """Sessions that hold variables now."""
        ...

    async def start(self) -> None:
        """Make ready. Raises `SandboxUnavailable` that names what is missing."""
        ...

    async def run(self, request: ExecRequest) -> ExecResult:
        """Run one program or cell. Raises `CallLost`, `SessionLost`, `SandboxBusy` (too many sessions) or
        `SandboxUnavailable`; cancelling it kills the program, and the session that it was a cell of.
        """
        ...

    async def end_session(self, session: str) -> None:
        """Let a session go; an unknown one is no error."""
        ...

    async def close(self) -> None:
        """Stop every program and leave nothing behind. May be called twice."""
        ...

    def describe(self) -> str:
        """One line for people: which isolation programs get here."""
        ...
