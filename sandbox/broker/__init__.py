"""How calls get from clients to nodes: `protocol` for any broker, `memory` for that of a process, `valkey` for that of
a cluster. The latter is not imported here: it needs the client library of its server, and most users do not.
"""

from sandbox.broker.memory import MemoryBroker
from sandbox.broker.protocol import Broker, Submitter, Ticket

__all__ = ["Broker", "MemoryBroker", "Submitter", "Ticket"]
