"""The two messages between a supervisor and the process of a session, one datagram each. Standard library only.

An order says what to run: a header, then the source, or a descriptor of it beside where it is long. The answer says
no more than that the cell is over: its output travels on the pipes, and whatever else it may claim is not asked for.
"""

from struct import Struct
from typing import NamedTuple

INLINE_BYTES = 65536
"""Longest source that travels inside of its order."""
NONCE_BYTES = 16

_ORDER = Struct(f"!{NONCE_BYTES}sQ??")
_ANSWER = Struct(f"!{NONCE_BYTES}sB")
MAX_ORDER = _ORDER.size + INLINE_BYTES
ANSWER_BYTES = _ANSWER.size


class Order(NamedTuple):
    """One cell. Beside it travel, in this order and where the flags say so, descriptors of source and stdin."""

    nonce: bytes  # fresh for each cell, and named by its answer
    cell: int
    source: bytes  # UTF-8 and lone surrogates; empty if it travels beside
    source_beside: bool
    stdin_beside: bool  # else stdin is empty


def encode_order(order: Order) -> bytes:
    return _ORDER.pack(order.nonce, order.cell, order.source_beside, order.stdin_beside) + order.source


def decode_order(data: bytes) -> Order:
    nonce, cell, source_beside, stdin_beside = _ORDER.unpack_from(data)
    return Order(nonce, cell, data[_ORDER.size :], source_beside, stdin_beside)


def encode_answer(nonce: bytes, exit_code: int) -> bytes:
    """`exit_code` is in 0..255."""
    return _ANSWER.pack(nonce, exit_code)


def decode_answer(data: bytes) -> tuple[bytes, int]:
    """Nonce and exit code. Raises `ValueError` for what is no answer."""
    if len(data) != ANSWER_BYTES:
        raise ValueError(f"an answer has {ANSWER_BYTES} bytes, not {len(data)}")
    nonce, exit_code = _ANSWER.unpack(data)
    return nonce, exit_code
