"""Where the platform keeps its things on one machine, and who may read them.

``var/`` holds everything that lasts. Unix sockets lie in a short folder elsewhere, because a socket's path has at most
107 bytes whatever the clone's path. Leaves out what runs in there: ``webapp.machine``.
"""

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


class UnsafeFolder(Exception):
    """A folder that others could write to or that is not ours; the message says which and what to do."""


@dataclass(frozen=True)
class Var:
    """The folder of one installation; two installations never share one."""

    path: Path

    @classmethod
    def from_environment(cls) -> "Var":
        """``$STARLOOM_VAR``, else ``var/`` of the clone."""
        return cls(Path(os.environ.get("STARLOOM_VAR", ROOT / "var")).resolve())

    @property
    def runs(self) -> Path:
        """Run folders, one each."""
        return self.path / "runs"

    @property
    def models(self) -> Path:
        """Model folders that a recipe may name."""
        return self.path / "models"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def valkey(self) -> Path:
        return self.path / "valkey"

    @property
    def agent(self) -> Path:
        """What the agent must know of its engines after its own death."""
        return self.path / "agent"

    @property
    def last_port(self) -> int | None:
        """The port that the web server had last: engines that outlived it know the platform by it."""
        try:
            return int((self.path / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    @property
    def sockets(self) -> Path:
        """A short folder for unix sockets, the same for every process of ours; ``ensure_private`` makes it. Not in
        ``$XDG_RUNTIME_DIR``: cron has none, and it is removed when its owner logs out and leaves Starloom running."""
        name = hashlib.sha256(str(self.path).encode()).hexdigest()[:10]
        return Path(os.environ.get("STARLOOM_SOCKETS", "/tmp")) / f"starloom-{os.getuid()}-{name}"

    def secret(self, name: str) -> str:
        """A random secret kept in ``var/<name>``, 0600, made on first use by whoever comes first."""
        file = self.path / name
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        candidate = self.path / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        if not file.exists():
            descriptor = os.open(candidate, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as out:
                out.write(secrets.token_urlsafe(48))
            try:
                os.link(candidate, file)  # fails, as wanted, when another process was faster
            except FileExistsError:
                pass
            finally:
                candidate.unlink()
        return file.read_text()


def ensure_private(folder: Path) -> Path:
    """Make a folder that only we can enter; raise ``UnsafeFolder`` when one is there that is not so."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UnsafeFolder(f"{folder} is not a folder of ours: remove it or move it out of the way")
    folder.chmod(0o700)
    return folder
