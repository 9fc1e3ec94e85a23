"""How a gateway and its clients talk: numbered frames, a fixed header and a JSON body, over one byte stream.

The header tells which call a frame is about, so that even a body that is too large or no JSON gets an answer
that names its call. What the bodies mean is said in `sandbox.gateway` and `sandbox.remote`.
"""

import asyncio
import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

MOST_REQUEST_BYTES = 16 << 20
STREAM_BYTES = 1 << 20  # read ahead of a frame's reader
_MARK = b"sl1\0"  # the protocol and its version: whoever speaks another one is told so
_HEADER = struct.Struct("!4sBQI")  # mark, kind, number of the call, bytes of the body
_CHUNK = 1 << 16


class Kind(IntEnum):
    """What a frame says; the first two come from clients, the others answer a call."""

    RUN = 1  # an ExecRequest
    CANCEL = 2  # nobody wants the call's result any more; no body
    RESULT = 3  # an ExecResult
    UNAVAILABLE = 4  # {"message"}: the sandbox failed
    REFUSED = 5  # {"message"}: the request is wrong


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
