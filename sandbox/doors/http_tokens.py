"""Who may come in through the HTTP door: a file of token names and hashes, one "NAME SHA256" a line.

The tokens themselves are random and stored nowhere. A line that is taken out, or added, counts at once.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path

_PREFIX = "starloom_sandbox_"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,32}")
_LINE = re.compile(rf"({_NAME.pattern}) ([0-9a-f]{{64}})")


class TokensUnusable(Exception):
    """The file of tokens cannot be used; the message names it and what mends it."""


class Tokens:
    """The tokens in a file, as it is now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: tuple[int, int, int] | None = None
        self._names: dict[str, str] = {}  # by hash
        self._refresh()

    def owner(self, token: str) -> str | None:
        """The name of a token; None: it is none. Raises `TokensUnusable`."""
        self._refresh()
        asked, owner = _hash(token), None
        for known, name in self._names.items():
            if hmac.compare_digest(known, asked):  # all are compared: time tells nothing
                owner = name
        return owner

    def _refresh(self) -> None:
        try:
            seen = self._path.stat()
            version = seen.st_mtime_ns, seen.st_ino, seen.st_size
            if version != self._read_at:
                self._names = _parsed(self._path)
                self._read_at = version
        except OSError as error:
            raise TokensUnusable(
                f"the tokens in {self._path} cannot be read ({error.strerror}): "
                f"make one with `python -m sandbox token NAME --tokens {self._path}`"
            ) from error


def add_token(path: Path, name: str) -> str:
    """Store the hash of a new token, which is returned and nowhere else. Raises `TokensUnusable`, `ValueError`."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a token's name is 1 to 32 of A-Z a-z 0-9 . _ -, not {name!r}")
    known = _parsed(path) if path.exists() else {}
    if name in known.values():
        raise ValueError(f"{path} has a token {name} already: take its line out first, or use another name")
    token = _PREFIX + secrets.token_urlsafe(32)
    _replace(path, {**known, _hash(token): name})
    return token


def _parsed(path: Path) -> dict[str, str]:
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TokensUnusable(f"{path} is open to others: chmod 600 {path}")
    names = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        found = _LINE.fullmatch(line)
        if not found:
            raise TokensUnusable(f"{path} line {number}: expected NAME SHA256, as `python -m sandbox token` writes it")
        names[found[2]] = found[1]
    return names


def _replace(path: Path, names: dict[str, str]) -> None:
    """All or nothing: who reads meanwhile, or after a crash, finds the old file or the new one."""
    descriptor, new = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{name} {known}\n" for known, name in names.items())
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
