"""What a node announces about itself, for `python -m sandbox status`, for events and for whoever places sessions."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Tier = Literal["full", "container", "none"]
"""Isolation of the programs, strongest first; `docs/sandbox.md` says what each one stops."""


class NodeStatus(BaseModel):
    """One node, as of `seen_s` seconds ago."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Unique among the nodes of a cluster.")
    host: str = Field(description="Host name of its machine.")
    tier: Tier = Field(description="Isolation that its programs get.")
    isolation: str = Field(description="The same in one line for people, with what limits memory and processes.")
    slots: int = Field(description="Programs that run at once.")
    busy: int = Field(description="Programs that run now.")
    sessions: int = Field(description="Sessions that hold variables here.")
    answered: int = Field(description="Calls answered since it started.")
    draining: bool = Field(default=False, description="Takes no new calls and ends when its last one has.")
    uptime_s: float = Field(description="Seconds since it started.")
    load_1m: float = Field(description="Load average of its machine over the last minute.")
    memory_mb: int = Field(description="Resident MiB of the node's own process, programs excluded.")
    seen_s: float = Field(default=0.0, description="Seconds since it announced this.")


class SandboxStatus(BaseModel):
    """A sandbox as a whole: its queue and its living nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[NodeStatus, ...]
    queued_interactive: int = Field(description="Interactive calls that no node has taken yet.")
    queued_training: int = Field(description="Training calls that no node has taken yet.")
