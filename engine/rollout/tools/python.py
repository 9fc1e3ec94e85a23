"""The built-in tools: Python programs that run alone, and cells of one session that share their variables.

Leaves out running them: ``sandbox``.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from engine.rollout.tools.base import Sandbox, ToolContext, ToolOutcome
from engine.rollout.tools.spec import ToolSpec
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, SandboxUnavailable

NO_OUTPUT = "(no output)"
VARIABLES_GONE = "The variables are gone: the next call starts without any."

PYTHON_TOOL = ToolSpec(
    name="execute_python_code_with_standard_io",
    description="Run Python code with the given standard input and return its standard output.",
    parameters={
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "Python source to run."},
            "input": {"type": "string", "description": "Text given to the program on standard input."},
        },
        "required": ["code", "input"],
    },
)

PYTHON_SESSION_TOOL = ToolSpec(
    name="execute_python_cell",
    description="Run Python code as the next cell of a notebook: variables stay for later calls. Returns what it "
    "prints and the value of its last expression.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python source of the cell."}},
        "required": ["code"],
    },
)

_CARETS = re.compile(r"[ ~^]*")
_UNTRACED_LINES = 5
_READ_CHARS = 1 << 16


class PythonTool:
    """The paper's tool: each program runs alone and keeps nothing."""

    spec = PYTHON_TOOL

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        """See ``Tool``."""
        request = ExecRequest(code=arguments["code"], stdin=arguments.get("input", ""), limits=context.limits)
        result = await run(context.sandbox, request)
        return outcome(result, context.limits)


class PythonSessionTool:
    """Cells of one session per rollout."""

    spec = PYTHON_SESSION_TOOL

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        """See ``Tool``."""
        cells = await context.scope.keep(self, lambda: open_cells(context.sandbox))
        result = await cells.run(arguments["code"], context.limits)
        return outcome(result, context.limits)


class Cells:
    """The cells of one session, numbered, one after the other in the order of the calls."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.session = f"rollout-{uuid4().hex}"
        self._sandbox = sandbox
        self._next = 0
        self._turn = asyncio.Lock()

    @property
    def opened(self) -> bool:
        return self._next > 0

    async def run(self, code: str, limits: Limits) -> ExecResult:
        async with self._turn:
            request = ExecRequest(code=code, session=self.session, cell=self._next, limits=limits)
            self._next += 1  # also of one that fails: the attempt is spoiled, and its number is not for another program
            return await run(self._sandbox, request)


@asynccontextmanager
async def open_cells(sandbox: Sandbox) -> AsyncIterator[Cells]:
    """A session for as long as the block lasts; its first cell opens it."""
    cells = Cells(sandbox)
    try:
        yield cells
    finally:
        if cells.opened:
            await sandbox.end_session(cells.session)


async def run(sandbox: Sandbox, request: ExecRequest) -> ExecResult:
    """The result of a call. Raises ``SandboxUnavailable``, also for the result of another one."""
    result = await sandbox.execute(request)
    if result.id != request.id:
        raise SandboxUnavailable(f"asked for {request.id}, got the result of {result.id}")
    return result


def outcome(result: ExecResult, limits: Limits) -> ToolOutcome:
    """A program's result as a tool's."""
    return ToolOutcome(
        response=describe_result(result, limits),
        status=result.status,
        error_type=result.error.type if result.error else None,
        queued_s=result.queued_s,
        wall_s=result.wall_s,
    )


def describe_result(result: ExecResult, limits: Limits) -> str:
    """What the model is told of a program: its output, then in words what went wrong with it."""
    gone = VARIABLES_GONE if result.session_kept is False else ""
    parts = [result.stdout.rstrip("\n"), _failure(result, limits), gone]
    return "\n".join(part for part in parts if part) or NO_OUTPUT


def _failure(result: ExecResult, limits: Limits) -> str:
    match result.status:
        case ExecStatus.OK:
            return ""
        case ExecStatus.ERROR:
            return traceback_tail(result.stderr) or f"The program ended with exit code {result.exit_code}."
        case ExecStatus.TIMEOUT:
            return f"Timeout: the program was stopped after {result.wall_s:.3g} seconds."
        case ExecStatus.MEMORY:
            return f"Out of memory: the program may use {limits.memory_mb} MiB."
        case ExecStatus.OUTPUT_LIMIT:
            return f"Output limit: the program may print {limits.output_bytes} bytes."
        case ExecStatus.KILLED:
            return f"The program was stopped. {result.detail}".rstrip()


def traceback_tail(stderr: str) -> str:
    """The innermost frame and the message: what a person reads first, and short.

    Lines of carets are left out. Without a traceback the last lines stay. Of megabytes only the end is read.
    """
    end = stderr[-_READ_CHARS:].strip("\n")
    lines = [line for line in end.splitlines() if line.strip() and not _CARETS.fullmatch(line)]
    frames = [place for place, line in enumerate(lines) if line.startswith('  File "')]
    return "\n".join(lines[frames[-1] :] if frames else lines[-_UNTRACED_LINES:])
