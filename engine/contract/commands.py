"""What may be asked of a running engine. Leaves out how a command arrives (signal, HTTP)."""

from enum import StrEnum

from pydantic import Field

from engine.contract.base import Strict


class CommandKind(StrEnum):
    """Commands that the engine line honours at the end of a step."""

    stop = "stop"
    checkpoint = "checkpoint"


class Command(Strict):
    """One command for a run."""

    kind: CommandKind
    by: str = Field(description="Who asked: `signal SIGINT`, a user name.")
