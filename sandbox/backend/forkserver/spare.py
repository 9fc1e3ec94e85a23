"""The life of a zygote's child: locks itself down, waits for what it is for, becomes that. Runs in the jail.

It is forked ahead of need and may wait for long, so all that does not depend on the request is done before the wait.
"""

import os
import socket
from collections.abc import Callable
from typing import NoReturn

from sandbox.backend.forkserver import lockdown, program, wire
from sandbox.backend.forkserver.lockdown import CONTROL, Descriptors
from sandbox.backend.sessions import cells

Plan = Callable[[wire.SpawnOrder, Descriptors], Callable[[], None]]
"""How a tier locks its children down. Called in the zygote, where work costs less; what it returns, in the child."""


def live(order: wire.SpawnOrder, fds: Descriptors, lock_down: Callable[[], None], mapped_bytes: int) -> NoReturn:
    """From the fork to the end of the process."""
    try:
        lock_down()
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, CONTROL)
        if order.scratch:
            program.move_to(order.scratch)
        control.send(wire.READY)
        message, received, _, _ = socket.recv_fds(control, wire.MAX_MESSAGE, wire.MAX_FDS)
        if not message:
            os._exit(0)  # it was never needed
        assignment, source = wire.decode_assignment(message)
        if not assignment.is_session:
            source = _take_program(assignment, source, received)
        lockdown.limit(assignment, mapped_bytes)
    except BaseException as error:  # ours, not the program's: told on a socket that no program ever holds
        _tell((fds.control, CONTROL), f"lockdown failed: {error!r}")
        os._exit(1)
    if assignment.is_session:
        cells.serve(control)
    control.close()  # from here on nothing that the process writes can be taken for ours
    program.run(source)


def _take_program(assignment: wire.Assignment, source: bytes, received: list[int]) -> bytes:
    if not assignment.is_inline:
        code = received.pop(0)
        source = os.pread(code, os.fstat(code).st_size, 0)
        os.close(code)
    if assignment.has_stdin:
        stdin = received.pop(0)
        os.dup2(stdin, 0)
        os.close(stdin)
    return source


def _tell(candidates: tuple[int, ...], text: str) -> None:
    """Write to the first descriptor that works: the socket may have been moved when the failure came."""
    for fd in candidates:
        try:
            os.write(fd, text.encode())
        except OSError:
            continue
        return
