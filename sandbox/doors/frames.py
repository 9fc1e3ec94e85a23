"""How a gateway and its clients talk: numbered frames, a fixed header and a JSON body, over one byte stream.

The header tells which call a frame is about, so that even a body that is too large or no JSON gets an answer
that names its call. What is done about a frame is said in `sandbox.doors.gateway` and `sandbox.doors.remote`.
"""

import asyncio
import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sandbox.contract import RequestRefused, SandboxBusy, SandboxUnavailable, SessionLost

STREAM_BYTES = 1 << 20  # read ahead of a frame's reader
_MARK = b"sl2\0"  # the protocol and its version: whoever speaks another one is told so
_HEADER = struct.Struct("!4sBQI")  # mark, kind, number of the call, bytes of the body
_CHUNK = 1 << 16


class Kind(IntEnum):
    """What a frame says. Clients ask with the first four; each question but `CANCEL` gets one of the others."""

    RUN = 1  # an ExecRequest
    CANCEL = 2  # nobody wants the call's result any more; no body, no answer
    END_SESSION = 3  # {"session"}
    STATUS = 4  # no body

    RESULT = 16  # an ExecResult
    ENDED = 17  # no body
    STATE = 18  # a SandboxStatus

    UNAVAILABLE = 32  # {"message"}, as all that follow
    BUSY = 33
    SESSION_LOST = 34
    REFUSED = 35


FAILURES: dict[Kind, type[Exception]] = {  # the narrower ones first
    Kind.BUSY: SandboxBusy,
    Kind.SESSION_LOST: SessionLost,
    Kind.UNAVAILABLE: SandboxUnavailable,
    Kind.REFUSED: RequestRefused,
}
"""How exceptions travel."""


@dataclass(frozen=True)
class Frame:
    """One message about one call. `call` is chosen by the client and its own within a connection."""

    kind: int
    call: int
    body: bytes


class NotAFrame(ValueError):
    """These bytes are no frame of ours, so nothing behind them can be understood either."""


class TooLarge(ValueError):
    """A frame went over the size that its reader allows; its body was thrown away, the stream goes on."""

    def __init__(self, call: int, size: int, most: int) -> None:
        super().__init__(f"the request has {size} bytes, {most} are allowed: send less code or stdin")
        self.call = call


def encode(kind: Kind, call: int, body: Any = None) -> bytes:
    """The bytes of a frame. JSON in ASCII: lone surrogates of model text travel as escapes."""
    data = b"" if body is None else json.dumps(body).encode()
    return _HEADER.pack(_MARK, kind, call, len(data)) + data


async def read_frame(stream: asyncio.StreamReader, most: int = (1 << 32) - 1) -> Frame | None:
    """The next frame; None at the end of the stream, also where that cuts a frame. Raises `NotAFrame`, `TooLarge`."""
    try:
        mark, kind, call, size = _HEADER.unpack(await stream.readexactly(_HEADER.size))
        if mark != _MARK:
            raise NotAFrame(f"expected a frame that begins with {_MARK!r}, got {mark!r}")
        if size > most:
            await _skip(stream, size)
            raise TooLarge(call, size, most)
        return Frame(kind, call, await stream.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


async def _skip(stream: asyncio.StreamReader, size: int) -> None:
    while size:
        data = await stream.read(min(size, _CHUNK))
        if not data:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(data)
