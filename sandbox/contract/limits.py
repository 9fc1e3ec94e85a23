"""The resources one call may use. How they are enforced is the backend's business and not said here."""

from pydantic import BaseModel, ConfigDict, Field


class Limits(BaseModel):
    """Ceilings for one call; going over one ends the call with the status that names it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wall_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds of real time from the start of the program, queueing excluded.",
    )
    cpu_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds of CPU time of each process, rounded up to whole ones.",
    )
    memory_mb: int = Field(
        default=512,
        ge=32,
        le=1 << 20,
        description="MiB of memory of all processes together, scratch files included.",
    )
    output_bytes: int = Field(
        default=65536,
        ge=1,
        le=64 << 20,
        description="Bytes kept of stdout, and as many of stderr; a program that writes more is stopped.",
    )
    processes: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Processes and threads alive at once, the program itself included.",
    )
    scratch_mb: int = Field(
        default=32,
        ge=1,
        le=16384,
        description="MiB of files that the program may keep in its working directory.",
    )
