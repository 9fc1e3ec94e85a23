"""The messages between supervisor and zygote: JSON datagrams on a SEQPACKET socket, descriptors beside them.

A program's code and output never travel here; only descriptors to them do. Standard library only.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

MAX_MESSAGE = 65536
MAX_FDS = 16


@dataclass(frozen=True)
class ZygoteConfig:
    """What a zygote is told when it starts."""

    supervisor_pid: int
    mapped_ids: bool  # the supervisor maps a range of user ids for us (it is root); else we map our own
    modules: tuple[str, ...]  # imported before the first call; absent ones are skipped
    warm_up: tuple[str, ...]  # programs run once, so that their lazy imports and caches are shared by all calls


@dataclass(frozen=True)
class SpawnOrder:
    """One program to run. Beside it travel its descriptors, in the order of `lockdown.Descriptors`."""

    call: int
    uid: int  # inside the zygote's user namespace; 0: make a user namespace for this call alone
    cpu_s: int
    scratch_bytes: int
    scratch_inodes: int
    address_space_bytes: int  # on top of what the zygote has mapped; 0: the cgroup limits memory
    processes: int  # 0: the cgroup limits processes


@dataclass(frozen=True)
class Event:
    """What a zygote says. `spawned` and `ready` carry a pidfd."""

    kind: Literal["map_ids", "ready", "failed", "spawned", "exited", "refused"]
    call: int = 0
    wait_status: int = 0
    cpu_s: float = 0.0
    text: str = ""


def encode(message: ZygoteConfig | SpawnOrder | Event) -> bytes:
    return json.dumps(asdict(message)).encode()


def _fields(data: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(data)
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


def decode_config(data: bytes) -> ZygoteConfig:
    return ZygoteConfig(**_fields(data))


def decode_order(data: bytes) -> SpawnOrder:
    return SpawnOrder(**_fields(data))


def decode_event(data: bytes) -> Event:
    return Event(**_fields(data))
