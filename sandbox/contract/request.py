"""One call to the sandbox: a program that runs alone, or the next cell of a session that keeps its variables.

The rules of sessions, which every backend and broker keeps:

* A session is opened by its cell 0 and lives on one node. Its cells run one after the other, in order.
* The value of a cell's last expression is printed to its stdout as IPython would show it, `None` and expressions
  that end in `;` not.
* A cell that ends its own process (timeout, memory, output limit, `os._exit`, a signal) takes the variables with it:
  its result says so (`session_kept` false), and the next cell starts with fresh ones.
* State that is lost through us (a node died or was drained, the session idled too long) is reported by `SessionLost`
  and never silently replayed: the caller opens a new session.
* A cell that is submitted again after it was answered is not run again; it gets the same answer while it is the
  session's last, else `SessionLost`.
"""

from enum import StrEnum
from typing import Annotated, Self
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from sandbox.contract.limits import Limits

MOST_REQUEST_BYTES = 16 << 20
"""Size of a request as JSON that every door and broker takes; what is larger is refused before it is read."""


def _any_str(value: object) -> str:
    """Accept every Python string: models emit lone surrogates, and pydantic's own `str` refuses those."""
    if not isinstance(value, str):
        raise ValueError("Input should be a string")
    return value


AnyText = Annotated[str, PlainValidator(_any_str), WithJsonSchema({"type": "string"})]


class Priority(StrEnum):
    """Who waits for the result. Interactive calls go before all training calls that wait."""

    INTERACTIVE = "interactive"
    TRAINING = "training"


class ExecRequest(BaseModel):
    """A Python program, what it reads, and how much it may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(
        default_factory=lambda: uuid4().hex,
        description="Chosen by the caller; comes back with the result.",
    )
    code: AnyText = Field(description="Source of the program; runs as the module `__main__`.")
    stdin: AnyText = Field(default="", description="What the program reads on stdin, then end of file.")
    session: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z0-9._:-]+$",
        description="Session whose variables the program sees, by a name that its caller made up; null: none.",
    )
    cell: int = Field(default=0, ge=0, description="Place in the session, from 0, which opens it; 0 without one.")
    limits: Limits = Field(
        default_factory=Limits,
        description="Ceilings for this call. In a session processes, scratch_mb and memory_mb are those of cell 0.",
    )
    priority: Priority = Field(default=Priority.TRAINING, description="Interactive calls are run before training ones.")
    queue_s: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Longest wait for a free slot in seconds; then `SandboxBusy`. Null: as long as it takes.",
    )

    @model_validator(mode="after")
    def _cells_belong_to_sessions(self) -> Self:
        if self.cell and self.session is None:
            raise ValueError("cell must be 0 where session is null")
        return self
