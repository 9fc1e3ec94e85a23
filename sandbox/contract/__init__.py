"""What callers of the sandbox may rely on: requests, limits, results. Imports pydantic and stdlib only."""

from sandbox.contract.faults import first_fault
from sandbox.contract.limits import Limits
from sandbox.contract.request import ExecRequest
from sandbox.contract.result import ExecResult, ExecStatus, Executor, ProgramError, RequestRefused, SandboxUnavailable

__all__ = [
    "ExecRequest",
    "ExecResult",
    "ExecStatus",
    "Executor",
    "Limits",
    "ProgramError",
    "RequestRefused",
    "SandboxUnavailable",
    "first_fault",
]
