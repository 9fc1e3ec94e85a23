"""Builds `frontend/` into the bundle that the platform serves: packages, type check, Vite.

Done again only when something changed that goes into it. Leaves out watching and serving for development.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.environments import Environment
from scripts.node import Node
from scripts.progress import Progress

BUNDLE = "platform/webapp/ui/static/ui/bundle"


@dataclass(frozen=True)
class FrontEnd:
    """Sources, the Node that builds them, and where the bundle goes."""

    sources: Path
    bundle: Path
    node: Node

    @property
    def packages(self) -> Path:
        return self.sources / "node_modules"

    @property
    def packages_stamp(self) -> Path:
        return self.packages / ".starloom-packages"

    @property
    def bundle_stamp(self) -> Path:
        return self.packages / ".starloom-bundle"  # not in the bundle: that is served to browsers

    @property
    def manifest(self) -> Path:
        return self.bundle / "manifest.json"


def of(root: Path, environment: Environment) -> FrontEnd:
    """The front end of the clone at `root`."""
    return FrontEnd(root / "frontend", root / BUNDLE, Node(environment))


def is_ready(front_end: FrontEnd) -> bool:
    """Whether the bundle is what the sources say now."""
    stamp = front_end.bundle_stamp
    return front_end.manifest.exists() and stamp.exists() and stamp.read_text() == bundle_digest(front_end)


def build(front_end: FrontEnd) -> None:
    """Bring packages and bundle to what the sources say. Raises `SetupError` with the words of what failed."""
    front_end.bundle_stamp.unlink(missing_ok=True)
    node, sources = front_end.node, front_end.sources
    with Progress("front end", total=3) as progress:
        progress.note = "packages"
        if not has_packages(front_end):
            node.install(sources)
            front_end.packages_stamp.write_text(packages_digest(front_end))
        progress.count, progress.note = 1, "checking types"
        node.run(["node_modules/typescript/bin/tsc", "--noEmit"], sources, "the type check of the front end")
        progress.count, progress.note = 2, "building"
        node.run(["node_modules/vite/bin/vite.js", "build"], sources, "the build of the front end")
    front_end.bundle_stamp.write_text(bundle_digest(front_end))


def has_packages(front_end: FrontEnd) -> bool:
    stamp = front_end.packages_stamp
    return stamp.exists() and stamp.read_text() == packages_digest(front_end)


def packages_digest(front_end: FrontEnd) -> str:
    """Changes with the lock and with Node."""
    lock = (front_end.sources / "package-lock.json").read_bytes()
    return hashlib.sha256(lock + front_end.node.version.encode()).hexdigest()


def bundle_digest(front_end: FrontEnd) -> str:
    """Changes with everything that goes in, and with what came out (a build by hand replaces it)."""
    digest = hashlib.sha256(front_end.node.version.encode())
    for path in [*sorted(source_files(front_end.sources)), front_end.manifest]:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(front_end.sources.parent)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def source_files(folder: Path) -> Iterator[Path]:
    """All files below, packages apart (there are thousands of those)."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "node_modules"]
        yield from (Path(parent, name) for name in files)
