"""The system-call filter of jailed programs, and the small BPF assembler that writes it. x86-64 only.

A deny list: what namespaces, missing capabilities and limits already contain stays allowed; what widens the
kernel's attack surface, or would be a channel between two calls, is refused with EPERM. System calls newer
than this file are refused with ENOSYS. Format: linux/filter.h and linux/seccomp.h.

Zygotes load the bytes of `FILE`; `python -m sandbox.backend.forkserver.seccomp` writes them anew after a change here.
The kernel checks and compiles a filter for each process that loads it, so it is a binary search and not a long list.
"""

import errno
import struct
from itertools import groupby
from pathlib import Path

from sandbox.backend.forkserver.syscalls import NAMESPACE_FLAGS

FILE = Path(__file__).with_name("seccomp_x86_64.bpf")

_LOAD, _AND, _RETURN, _JUMP = 0x20, 0x54, 0x06, 0x05
_IF_EQUAL, _IF_GREATER_EQUAL, _IF_ANY_BIT = 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_X86_64 = 0xC000003E
_INSTRUCTION_BYTES = 8
_LONGEST_BRANCH = 255

_SOCKET, _SOCKETPAIR, _CLONE, _CLONE3, _IOCTL, _KILL = 41, 53, 56, 435, 16, 62
_LAST_KNOWN = 456  # futex_requeue, Linux 6.7

_DENIED: dict[str, tuple[int, ...]] = {
    "other processes": (101, 310, 311, 312, 438, 440, 448),  # ptrace process_vm_* kcmp pidfd_getfd ...
    "mounts and roots": (155, 161, 165, 166, 428, 429, 430, 431, 432, 433, 442),
    "namespaces": (272, 308),
    "file handles": (303, 304),
    "kernel programs": (321, 298, 323, 425, 426, 427, 317),  # bpf perf userfaultfd io_uring seccomp
    "keyrings": (248, 249, 250),
    "modules and boot": (174, 175, 176, 177, 178, 246, 313, 320, 169),
    "machine state": (103, 153, 154, 156, 159, 163, 164, 167, 168, 170, 171, 172, 173, 179, 227, 305, 443),
    "obsolete": (134, 135, 136, 139, 180, 212, 236),  # uselib personality ustat sysfs ...
    "watching files": (300, 301),  # fanotify
    "scheduling and placement": (144, 142, 314, 251, 237, 238, 256, 279, 450),
    "System V and POSIX queues": (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241),  # outlive a call
    "network": (42, 43, 49, 50, 54, 288),  # connect accept bind listen setsockopt accept4
    "secret memory": (447,),
}


class Assembler:
    """Collects instructions; every rule leaves the system call's number in the accumulator."""

    def __init__(self) -> None:
        self._code: list[bytes] = []

    def emit(self, operation: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self._code.append(struct.pack("=HBBI", operation, if_true, if_false, value))

    def load_number(self) -> None:
        self.emit(_LOAD, _NUMBER)

    def load_argument(self, index: int) -> None:
        self.emit(_LOAD, 16 + 8 * index)  # the low half: all that the checked arguments use

    def allow(self) -> None:
        self.emit(_RETURN, _ALLOW)

    def refuse(self, number: int, error: int = errno.EPERM) -> None:
        self.emit(_IF_EQUAL, number, 0, 1)
        self.emit(_RETURN, _ERRNO | error)

    def refuse_if_bits(self, number: int, argument: int, mask: int) -> None:
        self.emit(_IF_EQUAL, number, 0, 4)
        self.load_argument(argument)
        self.emit(_IF_ANY_BIT, mask, 0, 1)
        self.emit(_RETURN, _ERRNO | errno.EPERM)
        self.load_number()

    def refuse_if_equal(self, number: int, argument: int, value: int) -> None:
        self.emit(_IF_EQUAL, number, 0, 4)
        self.load_argument(argument)
        self.emit(_IF_EQUAL, value, 0, 1)
        self.emit(_RETURN, _ERRNO | errno.EPERM)
        self.load_number()

    def refuse_unless(self, number: int, argument: int, allowed: tuple[int, ...], mask: int = 0xFFFFFFFF) -> None:
        self.emit(_IF_EQUAL, number, 0, len(allowed) + 4)
        self.load_argument(argument)
        self.emit(_AND, mask)
        for position, value in enumerate(allowed):
            self.emit(_IF_EQUAL, value, len(allowed) - position, 0)
        self.emit(_RETURN, _ERRNO | errno.EPERM)
        self.load_number()

    def program(self) -> bytes:
        return b"".join(self._code)


def shipped() -> bytes:
    """The filter as loadable bytes, from its file. Raises `OSError`."""
    return FILE.read_bytes()


def build() -> bytes:
    """The filter as loadable bytes, made anew."""
    asm = Assembler()
    asm.emit(_LOAD, _ARCHITECTURE)
    asm.emit(_IF_EQUAL, _X86_64, 1, 0)
    asm.emit(_RETURN, _KILL_PROCESS)  # 32-bit calls have other numbers and would walk around the list
    asm.load_number()
    rules = [_rule_of(number) for number in range(_LAST_KNOWN + 1)]
    runs = [(next(run)[0], rule) for rule, run in groupby(enumerate(rules), key=lambda item: item[1])]
    beyond = (_LAST_KNOWN + 1, _returning(_ERRNO | errno.ENOSYS))  # covers the x32 numbers as well
    return asm.program() + _search([*runs, beyond])


def _search(runs: list[tuple[int, bytes]]) -> bytes:
    """A binary search among `runs`: (first number, what is done from there up to the next run)."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    below, above = _search(runs[:middle]), _search(runs[middle:])
    distance = len(below) // _INSTRUCTION_BYTES
    asm = Assembler()
    if distance <= _LONGEST_BRANCH:
        asm.emit(_IF_GREATER_EQUAL, runs[middle][0], distance, 0)
    else:
        asm.emit(_IF_GREATER_EQUAL, runs[middle][0], 0, 1)
        asm.emit(_JUMP, distance)
    return asm.program() + below + above


def _returning(verdict: int) -> bytes:
    asm = Assembler()
    asm.emit(_RETURN, verdict)
    return asm.program()


def _rule_of(number: int) -> bytes:
    """What is done with one system call."""
    if any(number in numbers for numbers in _DENIED.values()):
        return _returning(_ERRNO | errno.EPERM)
    if number == _CLONE3:
        return _returning(_ERRNO | errno.ENOSYS)  # its flags lie in memory, unseen from here; libc then uses clone
    asm = Assembler()
    if number == _CLONE:
        asm.refuse_if_bits(_CLONE, 0, NAMESPACE_FLAGS & ~0x80)  # 0x80 is part of clone's exit signal
    elif number == _SOCKET:
        _allow_few_sockets(asm)
    elif number == _SOCKETPAIR:
        asm.refuse_unless(_SOCKETPAIR, 0, (1,))  # AF_UNIX
    elif number == _KILL:
        asm.refuse_if_equal(_KILL, 0, 0)  # what os.kill(os.getppid()) comes to, the parent being outside
    elif number == _IOCTL:
        for command in (0x5412, 0x541C):  # TIOCSTI, TIOCLINUX: typing into a terminal
            asm.refuse_if_equal(_IOCTL, 1, command)
    asm.allow()
    return asm.program()


def _allow_few_sockets(asm: Assembler) -> None:
    """Internet sockets may be made and only connecting fails: what programs know from unplugged machines."""
    asm.refuse_unless(_SOCKET, 0, (2, 10))  # AF_INET, AF_INET6
    asm.refuse_unless(_SOCKET, 1, (1, 2), mask=0xF)  # SOCK_STREAM, SOCK_DGRAM
    asm.refuse_unless(_SOCKET, 2, (0, 6, 17))  # default, TCP, UDP


if __name__ == "__main__":
    FILE.write_bytes(build())
