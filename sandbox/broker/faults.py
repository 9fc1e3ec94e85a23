"""What brokers tell submitters about calls that did not run, in the same words for each broker; and their bounds."""

from sandbox.contract import ExecRequest, SandboxBusy, SessionLost

MOST_QUEUED = 100_000


def not_started(request: ExecRequest) -> SandboxBusy:
    """The wait that the request allows is over."""
    return SandboxBusy(f"call {request.id} was not started within {request.queue_s:g} s: the sandbox is busy")


def node_left(session: str) -> SessionLost:
    """Its node went away in good order."""
    return SessionLost(f"session {session} is lost: its node was stopped")
