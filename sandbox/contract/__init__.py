"""What callers of the sandbox may rely on: requests, limits, results, status. Imports pydantic and stdlib only."""

from sandbox.contract.faults import first_fault
from sandbox.contract.limits import Limits
from sandbox.contract.node_status import NodeStatus, SandboxStatus, Tier
from sandbox.contract.request import MOST_REQUEST_BYTES, ExecRequest, Priority
from sandbox.contract.result import (
    ExecResult,
    ExecStatus,
    Executor,
    ProgramError,
    RequestRefused,
    SandboxBusy,
    SandboxUnavailable,
    SessionLost,
)

__all__ = [
    "MOST_REQUEST_BYTES",
    "ExecRequest",
    "ExecResult",
    "ExecStatus",
    "Executor",
    "Limits",
    "NodeStatus",
    "Priority",
    "ProgramError",
    "RequestRefused",
    "SandboxBusy",
    "SandboxStatus",
    "SandboxUnavailable",
    "SessionLost",
    "Tier",
    "first_fault",
]
