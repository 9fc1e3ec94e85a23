"""One call to the sandbox. Sessions (state kept between calls) are refused until they exist."""

from typing import Annotated
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, field_validator

from sandbox.contract.limits import Limits


def _any_str(value: object) -> str:
    """Accept every Python string: models emit lone surrogates, and pydantic's own `str` refuses those."""
    if not isinstance(value, str):
        raise ValueError("Input should be a string")
    return value


AnyText = Annotated[str, PlainValidator(_any_str), WithJsonSchema({"type": "string"})]


class ExecRequest(BaseModel):
    """A Python program, what it reads, and how much it may use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(
        default_factory=lambda: uuid4().hex,
        description="Chosen by the caller; comes back with the result.",
    )
    code: AnyText = Field(description="Source of the program; runs as the module `__main__`.")
    stdin: AnyText = Field(default="", description="What the program reads on stdin, then end of file.")
    session: str | None = Field(default=None, description="Must be null: sessions are not available yet.")
    limits: Limits = Field(default_factory=Limits, description="Ceilings for this call.")

    @field_validator("session")
    @classmethod
    def _no_sessions_yet(cls, value: str | None) -> str | None:
        if value is not None:
            raise ValueError("sessions are not available yet: send each program whole, with session null")
        return value
