"""The broker of a cluster, on a Valkey server (or a Redis from version 7): any number of clients and nodes.

`broker` is the whole, for its users; `calls` is the clients' side, `work` the nodes' side, `link` the connections,
`codec` the bytes. What has to happen at once happens in the scripts of `lua/`, which say where everything is kept.
"""

from sandbox.broker.valkey.broker import ValkeyBroker

__all__ = ["ValkeyBroker"]
