"""What may be asked of a running engine. Leaves out how a command arrives (signal, HTTP)."""

from enum import StrEnum

from pydantic import Field

from engine.contract.base import Strict


class CommandKind(StrEnum):
    """Commands, honoured at the end of a step and between stages: everything finished is durable then.

    ``pause`` holds the run with a checkpoint, its processes kept, until ``resume`` or ``stop``.
    """

    stop = "stop"
    checkpoint = "checkpoint"
    pause = "pause"
    resume = "resume"


class Command(Strict):
    """One command for a run."""

    kind: CommandKind
    by: str = Field(description="Who asked: `signal SIGINT`, a user name.")
    id: str = Field(default="", description="The platform's id of the command; it comes once, however often sent.")
