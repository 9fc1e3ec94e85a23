"""The TCP socket of the web server: opened by `up`, inherited by each web server, so that the port stays ours.

The port is remembered in ``var/port``: engines that outlived their `up` know the platform by it.
"""

import errno
import socket
from collections.abc import Callable

from webapp.config.paths import Var

PORTS_TRIED = 100


class NoPort(Exception):
    """No port to listen on; the message says why."""


def listen(host: str, first: int, say: Callable[[str], None]) -> socket.socket:
    """A listening socket on ``first``, or on the next port that is free. Raises ``NoPort``."""
    last = min(first + PORTS_TRIED, 65536) - 1
    for port in range(first, last + 1):
        try:
            listener = _open(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise NoPort(f"cannot listen on port {port} of {host}: {error.strerror}: try --port 8000") from error
            continue
        if port != first:
            say(f"port {first} is taken, using {port}")
        return listener
    raise NoPort(f"ports {first} to {last} are all taken: name another with --port")


def _open(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # or a restart waits for old connections
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted connections inherit it
        # A client that takes nothing for a minute is gone: without this its connection, closed by us, would stay.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
        listener.bind((host, port))
        listener.listen(256)
    except OSError:
        listener.close()
        raise
    return listener


def remember(var: Var, port: int) -> int | None:
    """Note the port; returns the one that was noted before."""
    before = var.last_port
    (var.path / "port").write_text(f"{port}\n")
    return before
