"""Public ids: a prefix that says what it is, and a ULID, which sorts by time (product contract: prefixed, sortable).

``derived_id`` makes the same id from the same facts, so that rows rebuilt from a run folder keep their addresses.
"""

import hashlib

from ulid import ULID

LENGTH = 32


def new_id(prefix: str) -> str:
    """A fresh id, such as ``run_01k3...``."""
    return f"{prefix}_{str(ULID()).lower()}"


def derived_id(prefix: str, at: float, *facts: object) -> str:
    """The id of something that happened at Unix time ``at`` and is identified by ``facts``."""
    random_part = hashlib.sha256("\x1f".join(map(str, facts)).encode()).digest()[:10]
    milliseconds = int(at * 1000).to_bytes(6, "big")
    return f"{prefix}_{str(ULID(milliseconds + random_part)).lower()}"
