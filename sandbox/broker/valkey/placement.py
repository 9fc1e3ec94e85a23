"""On which node a new session is to live: rendezvous hashing, in which a node's share is that of its slots.

Every client chooses alike without talking to the others, and a node that comes or goes moves only its own share.
"""

from collections.abc import Mapping
from hashlib import blake2b
from math import log

from sandbox.contract import NodeStatus

_STRENGTH = {"full": 2, "container": 1, "none": 0}


def place(session: str, nodes: Mapping[str, NodeStatus]) -> str | None:
    """One of the nodes that take sessions, of the strongest isolation there is; None where there are none."""
    taking = {node: status for node, status in nodes.items() if not status.draining}
    if not taking:
        return None
    strongest = max(_STRENGTH[status.tier] for status in taking.values())
    return max(
        (node for node, status in taking.items() if _STRENGTH[status.tier] == strongest),
        key=lambda node: _score(session, node, taking[node].slots),
    )


def _score(session: str, node: str, slots: int) -> float:
    drawn = int.from_bytes(blake2b(f"{node} {session}".encode(), digest_size=8).digest(), "big")
    return -slots / log((drawn + 1) / (2**64 + 1))
