"""The order of set-up: check, make the environments, compile, build the front end; each only if it is needed."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts import checks, environments, frontend, native
from scripts.packages import SetupError

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Returns the exit status."""
    try:
        with alone(ROOT):
            prepare(ROOT)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: stopped; the same command takes it up again", file=sys.stderr)
        return 130
    return 0


def prepare(root: Path) -> None:
    os.umask(0o022)  # programs in the sandbox run under other user ids and must be able to read their environment
    engine, sandbox = environments.both(root)
    waiting = [environment for environment in (engine, sandbox) if not environments.is_ready(environment)]
    if waiting:
        check(root)
    for environment in waiting:
        environments.make(environment)
    if engine in waiting or not native.is_ready(engine):
        native.build(engine)
    native.drop_locks(engine)
    pages = frontend.of(root, engine)
    if not frontend.is_ready(pages):
        frontend.build(pages)
    print(f"Ready: {engine.folder.name}, {sandbox.folder.name}, front end", flush=True)


def check(root: Path) -> None:
    """Raise with everything this machine lacks, before anything is downloaded."""
    print("Checking the machine", flush=True)
    found = checks.problems(checks.gather(root))
    if found:
        raise SetupError("this machine lacks:\n" + "\n".join(f"  - {problem}" for problem in found))


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let only one set-up work in this clone; the lock is on a folder and leaves nothing behind."""
    descriptor = os.open(root / "requirements", os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is at work in this clone: waiting for it", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
