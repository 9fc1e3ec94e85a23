"""The times and bounds of a Valkey broker. All members of a cluster use the same."""

from dataclasses import dataclass

from sandbox.broker.faults import MOST_QUEUED


@dataclass(frozen=True)
class Settings:
    """Durations are in seconds and measured by one clock each: the process's own, or the server's."""

    lease_s: float = 10.0
    """A call whose node did not say for so long that it still runs it is given to another one."""
    dead_s: float = 5.0
    """A node that did not announce itself for so long is dead, and its sessions are lost."""
    absent_s: float = 120.0
    """Calls and answers of a client that was not heard of for so long are thrown away."""
    patience_s: float = 30.0
    """Callers wait for so long for a Valkey that is gone."""
    session_s: float = 86_400.0
    """A session without a new cell for so long is forgotten."""
    most_queued: int = MOST_QUEUED
    """Calls that may be unanswered at once in one queue; more wait at their clients."""
    most_tries: int = 3
    """Nodes that may be lost with a call before it is refused."""

    @property
    def lease_ms(self) -> int:
        """`lease_s` for the server; the others likewise."""
        return round(1000 * self.lease_s)

    @property
    def dead_ms(self) -> int:
        return round(1000 * self.dead_s)

    @property
    def absent_ms(self) -> int:
        return round(1000 * self.absent_s)

    @property
    def session_ms(self) -> int:
        return round(1000 * self.session_s)

    @property
    def round_s(self) -> float:
        """Time between two looks at what has a time."""
        return min(1.0, self.lease_s / 4, self.dead_s / 4, self.patience_s / 4)
