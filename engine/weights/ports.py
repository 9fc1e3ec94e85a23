"""A TCP port that nobody else takes between its choice and its use, by another process of ours too."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """A free port of ``host``, an address of this machine.

    While the context lasts the kernel gives it to nobody who asks for any free port. Whoever is told the number can
    listen on it: the reservation is bound but does not listen, and Linux lets sockets with SO_REUSEADDR share that.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, 0))
        yield reservation.getsockname()[1]
