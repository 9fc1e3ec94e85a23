"""How calls get from clients to nodes: `protocol` for any broker, `memory` for the one of a process."""

from sandbox.broker.memory import MemoryBroker
from sandbox.broker.protocol import Broker, Submitter, Ticket

__all__ = ["Broker", "MemoryBroker", "Submitter", "Ticket"]
