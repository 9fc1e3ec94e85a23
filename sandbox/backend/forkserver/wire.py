"""The messages between supervisor, zygotes and their children: datagrams on SEQPACKET sockets, descriptors beside them.

Orders and events go between supervisor and zygote; an assignment goes from the supervisor straight to a child, so that
no zygote, whose memory all later children inherit, ever sees a program. Standard library only.
"""

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

MAX_MESSAGE = 65536
MAX_FDS = 4
INLINE_BYTES = 60_000  # a longer program travels as a descriptor
READY = b"ready"  # what a child says on its control socket when it is locked down; anything else is its last complaint


@dataclass(frozen=True)
class ZygoteConfig:
    """What a zygote is told when it starts."""

    supervisor_pid: int
    tier: Literal["full", "container"]
    mapped_ids: bool  # the supervisor maps a range of user ids for us (it is root); else we map our own
    modules: tuple[str, ...]  # imported before the first call; absent ones are skipped
    warm_up: tuple[str, ...]  # programs run once, so that their lazy imports and caches are shared by all calls


class SpawnOrder(NamedTuple):
    """One child to fork and lock down. Beside it travel the membership files of its cgroups."""

    child: int
    uid: int  # inside the zygote's user namespace; 0: make a user namespace for this child alone
    scratch_bytes: int
    scratch_inodes: int
    scratch: str  # container tier: the folder to make and to live in


class Assignment(NamedTuple):
    """What a child is for. Beside it travel its program, if that is not inline, and its stdin, if it has any."""

    is_session: bool
    cpu_s: int  # of each process; 0: watched from outside
    address_space_bytes: int  # on top of what the zygote has mapped; 0: the cgroup limits memory
    processes: int  # 0: the cgroup limits processes, or nothing does
    is_inline: bool
    has_stdin: bool


class Event(NamedTuple):
    """What a zygote says. `ready` carries a pidfd; `spawned` control socket, stdout, stderr and pidfd."""

    kind: Literal["map_ids", "ready", "failed", "spawned", "exited", "refused"]
    child: int = 0
    wait_status: int = 0
    cpu_s: float = 0.0
    text: str = ""


# Packed and not JSON: fewer objects to touch in processes where every page touched is a page copied.
_ORDER = struct.Struct("=IIQQ")
_ASSIGNMENT = struct.Struct("=?IQI??")
_EVENT = struct.Struct("=8sIid")


def encode_order(order: SpawnOrder) -> bytes:
    return _ORDER.pack(*order[:-1]) + order.scratch.encode()


def decode_order(data: bytes) -> SpawnOrder:
    child, uid, scratch_bytes, scratch_inodes = _ORDER.unpack_from(data)
    return SpawnOrder(child, uid, scratch_bytes, scratch_inodes, data[_ORDER.size :].decode())


def encode_event(event: Event) -> bytes:
    return _EVENT.pack(event.kind.encode(), *event[1:-1]) + event.text.encode()


def decode_event(data: bytes) -> Event:
    kind, child, wait_status, cpu_s = _EVENT.unpack_from(data)
    return Event(kind.rstrip(b"\0").decode(), child, wait_status, cpu_s, data[_EVENT.size :].decode())


def encode_assignment(assignment: Assignment, source: bytes = b"") -> bytes:
    """`source` is the program in UTF-8 (surrogates passed), where it is inline."""
    return _ASSIGNMENT.pack(*assignment) + source


def decode_assignment(data: bytes) -> tuple[Assignment, bytes]:
    return Assignment(*_ASSIGNMENT.unpack_from(data)), data[_ASSIGNMENT.size :]


def encode_config(config: ZygoteConfig) -> bytes:
    return json.dumps(asdict(config)).encode()


def decode_config(data: bytes) -> ZygoteConfig:
    fields: dict[str, Any] = json.loads(data)
    fields.update({key: tuple(fields[key]) for key in ("modules", "warm_up")})
    return ZygoteConfig(**fields)
