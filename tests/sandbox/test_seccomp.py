"""The system-call filter: the shipped bytes are the built ones, and a slow reading of them agrees with the lists."""

import errno
import struct

import pytest

from sandbox.backend.forkserver import seccomp
from sandbox.backend.forkserver.syscalls import NEWNS, NEWUSER

X86_64, I386 = 0xC000003E, 0x40000003
ALLOWED, KILLED = 0x7FFF0000, 0x80000000
REFUSED, UNKNOWN = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


def verdict(number: int, *arguments: int, architecture: int = X86_64) -> int:
    """Interpret the filter one instruction after the other."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    code = list(struct.iter_unpack("=HBBI", seccomp.shipped()))
    at = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, value)
            case 0x54:
                accumulator &= value
            case 0x05:
                at += value
            case 0x06:
                return value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case _:
                raise AssertionError(f"unknown operation {operation:#x}")


def test_the_shipped_filter_is_the_built_one() -> None:
    assert seccomp.shipped() == seccomp.build(), "run python -m sandbox.backend.forkserver.seccomp"


def test_every_number_gets_what_the_lists_say() -> None:
    denied = {number for numbers in seccomp._DENIED.values() for number in numbers}
    special = {41, 53, 56, 62, 435}  # socket, socketpair, clone, kill, clone3: their arguments count
    for number in set(range(457)) - special:
        assert verdict(number) == (REFUSED if number in denied else ALLOWED), number
    for number in (457, 511, 1 << 30, 0xFFFFFFFF):
        assert verdict(number) == UNKNOWN


@pytest.mark.parametrize(
    ("right", "number", "arguments"),
    [
        (ALLOWED, 56, (0x01200011,)),  # fork
        (ALLOWED, 56, (0x3D0F00,)),  # a thread
        (REFUSED, 56, (NEWUSER | 17,)),
        (REFUSED, 56, (NEWNS | 17,)),
        (UNKNOWN, 435, ()),  # clone3
        (ALLOWED, 41, (2, 1, 6)),  # TCP
        (ALLOWED, 41, (10, 2 | 0x80000, 17)),  # UDP, closed on exec
        (REFUSED, 41, (1, 1, 0)),  # unix
        (REFUSED, 41, (2, 3, 0)),  # raw
        (REFUSED, 41, (2, 1, 132)),  # SCTP
        (ALLOWED, 53, (1, 1, 0)),
        (REFUSED, 53, (2, 1, 0)),
        (ALLOWED, 62, (1, 9)),
        (REFUSED, 62, (0, 9)),
        (ALLOWED, 16, (0, 0x5401)),
        (REFUSED, 16, (0, 0x5412)),  # TIOCSTI
    ],
)
def test_calls_whose_arguments_count(right: int, number: int, arguments: tuple[int, ...]) -> None:
    assert verdict(number, *arguments) == right


def test_calls_of_another_architecture_kill() -> None:
    assert verdict(1, architecture=I386) == KILLED
