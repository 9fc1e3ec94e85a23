"""The launcher of one machine: asks its agent. Leaves out starting: ``agent.py``."""

import json
import socket
from typing import Any

from django.conf import settings

from webapp.machine.agent import SOCKET
from webapp.runs.launchers import Launch, LaunchFailed

_WAIT_S = 5.0
_ANSWER_BYTES = 1 << 20


class LocalLauncher:
    """A ``Launcher`` (``runs.launchers``): one order and one answer a call, over the agent's socket."""

    def start(self, launch: Launch) -> None:
        """Start the engine, or find it started."""
        ask(
            "start",
            run_id=launch.run_id,
            number=launch.number,
            folder=str(launch.folder),
            environment=launch.environment,
        )

    def is_alive(self, run_id: str, number: int) -> bool | None:
        """Whether the launch's engine lives; None when the agent does not answer."""
        try:
            return bool(ask("alive", run_id=run_id, number=number)["alive"])
        except LaunchFailed:
            return None

    def kill(self, run_id: str, number: int) -> None:
        """Kill the engine with all its processes. Raises ``LaunchFailed`` when the agent does not answer."""
        ask("kill", run_id=run_id, number=number)

    def living(self) -> list[tuple[str, int]]:
        """Launches whose engines live. Raises ``LaunchFailed`` when the agent does not answer."""
        return [(each["run_id"], each["number"]) for each in ask("list")["engines"]]


def ask(do: str, **order: Any) -> dict[str, Any]:
    """The agent's answer. Raises ``LaunchFailed`` with what is wrong and what mends it."""
    address = str(settings.VAR.sockets / SOCKET)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_WAIT_S)
            connection.connect(address)
            connection.sendall(json.dumps({"do": do, **order}).encode() + b"\n")
            answer = json.loads(_line(connection))
    except (OSError, ValueError) as error:
        raise LaunchFailed(f"this machine's agent does not answer ({error}): is `manage.py up` running?") from error
    if not answer["ok"]:
        raise LaunchFailed(f"this machine's agent could not do it: {answer['error']}")
    found: dict[str, Any] = answer
    return found


def _line(connection: socket.socket) -> bytes:
    read = b""
    while not read.endswith(b"\n") and len(read) < _ANSWER_BYTES:
        part = connection.recv(65536)
        if not part:
            raise OSError("it hung up")
        read += part
    return read
