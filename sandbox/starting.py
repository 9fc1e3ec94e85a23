"""Starts a node in this process: finds the interpreter of the programs and the isolation that the machine allows.

Programs run without isolation only where $STARLOOM_SANDBOX_ALLOW_WEAK=1 says so.
"""

import logging
import os
from functools import partial
from pathlib import Path

from sandbox.backend.forkserver.supervisor import ForkserverBackend
from sandbox.backend.protocol import Backend
from sandbox.backend.subprocess_backend import SubprocessBackend
from sandbox.broker import Broker
from sandbox.contract import SandboxUnavailable, Tier
from sandbox.node import Node

PYTHON_VARIABLE = "STARLOOM_SANDBOX_PYTHON"
ALLOW_WEAK_VARIABLE = "STARLOOM_SANDBOX_ALLOW_WEAK"
MOST_SESSIONS = 1000
SESSION_IDLE_S = 600.0
_DEFAULT_PYTHON = Path(__file__).parents[1] / ".venv-sandbox/bin/python"
_log = logging.getLogger(__name__)


async def started_node(
    broker: Broker,
    *,
    slots: int | None = None,
    python: Path | None = None,
    tier: Tier | None = None,
    name: str | None = None,
    most_sessions: int = MOST_SESSIONS,
    session_idle_s: float = SESSION_IDLE_S,
) -> Node:
    """A node that takes calls from `broker` by now; the first arguments are those of `sandbox.client.local_sandbox`.

    name: of the node; default one that is unique. session_idle_s: seconds after which a session that nobody used is
    lost. Raises `SandboxUnavailable` that names what is missing.
    """
    path, programs = interpreter(python), slots or max(2, os.cpu_count() or 1)
    plain = partial(SubprocessBackend, path, programs, most_sessions=most_sessions, session_idle_s=session_idle_s)
    jailed = partial(ForkserverBackend, path, programs, most_sessions=most_sessions, session_idle_s=session_idle_s)
    if tier == "none":
        _require_weak_allowed("tier none isolates nothing")
        return await _started(broker, plain(), name)
    try:
        return await _started(broker, jailed(tier=tier), name)
    except SandboxUnavailable as error:
        if tier:
            raise
        _require_weak_allowed(f"this machine cannot isolate programs: {error}", error)
        _log.warning("running programs WITHOUT isolation, as %s=1 allows: %s", ALLOW_WEAK_VARIABLE, error)
        return await _started(broker, plain(), name)


async def _started(broker: Broker, backend: Backend, name: str | None) -> Node:
    node = Node(broker, backend, name)
    await node.start()
    return node


def interpreter(python: Path | None) -> Path:
    """Of the programs: `python`, $STARLOOM_SANDBOX_PYTHON or .venv-sandbox. Raises `SandboxUnavailable`."""
    named = python or Path(os.environ.get(PYTHON_VARIABLE) or _DEFAULT_PYTHON)
    path = Path(os.path.abspath(named))  # with links kept: resolving them would leave the virtual environment
    if not os.access(path, os.X_OK):
        raise SandboxUnavailable(
            f"there is no interpreter for programs at {path}: run `make setup`, or set {PYTHON_VARIABLE}"
        )
    return path


def _require_weak_allowed(why: str, cause: Exception | None = None) -> None:
    if os.environ.get(ALLOW_WEAK_VARIABLE) != "1":
        raise SandboxUnavailable(
            f"{why}. Set {ALLOW_WEAK_VARIABLE}=1 to run programs WITHOUT isolation (see docs/sandbox.md)"
        ) from cause
