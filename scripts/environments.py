"""The two environments: which locks each holds, whether it is ready, and how it is made.

`.venv` runs the engine, the platform and the tools; `.venv-sandbox` holds what model-written programs may import and
nothing of ours. Packages come from lock files with `--no-deps`: see
docs/adr/0002-locks-without-dependencies.md.
"""

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scripts.packages import Pip, SetupError, clean_variables, install_pinned
from scripts.progress import Progress

STAMP = "starloom-ready"
INSTALLING = "starloom-installing"  # stands while files are unpacked: an environment that kept it is half-made


@dataclass(frozen=True)
class Environment:
    """A folder with an interpreter and the locks that say what is in it."""

    folder: Path
    locks: tuple[Path, ...]
    import_paths: tuple[Path, ...] = ()  # folders of ours that its interpreter imports from anywhere

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return self.folder / "lib" / "python3.11" / "site-packages"


def both(root: Path) -> tuple[Environment, Environment]:
    """The environments of the clone at `root`."""
    locks = root / "requirements"
    engine = Environment(
        root / ".venv",
        (locks / "engine.lock", locks / "platform.lock", locks / "dev.lock"),
        import_paths=(root, root / "platform"),
    )
    return engine, Environment(root / ".venv-sandbox", (locks / "sandbox.lock",))


def pinned(environment: Environment) -> list[str]:
    """The `name==version` lines of its locks, each once."""
    lines = [line.strip() for lock in environment.locks for line in lock.read_text().splitlines()]
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def digest(environment: Environment) -> str:
    """Changes with the locks, the interpreter and the place: an environment that was moved does not work."""
    interpreter = (environment.folder / "pyvenv.cfg").read_text()
    text = "\n".join([*pinned(environment), interpreter, str(environment.folder)])
    return hashlib.sha256(text.encode()).hexdigest()


def has_interpreter(environment: Environment) -> bool:
    """Whether its Python is there and the right one (its target may have been upgraded away)."""
    return environment.python.exists() and (environment.site_packages / "pip").is_dir()


def is_ready(environment: Environment) -> bool:
    """Whether it holds exactly what the locks say now."""
    stamp = environment.folder / STAMP
    return has_interpreter(environment) and stamp.exists() and stamp.read_text() == digest(environment)


def make(environment: Environment) -> None:
    """Bring the environment to what its locks say, from nothing, an older lock or a half-made one."""
    name = environment.folder.name
    if environment.folder.exists() and (not has_interpreter(environment) or (environment.folder / INSTALLING).exists()):
        print(f"{name} was left half-made: making it anew", flush=True)
        shutil.rmtree(environment.folder)
    if not environment.folder.exists():
        with Progress(f"{name}: making the environment"):
            create(environment)
    (environment.folder / STAMP).unlink(missing_ok=True)
    install(environment)
    write_import_paths(environment)
    (environment.folder / STAMP).write_text(digest(environment))


def create(environment: Environment) -> None:
    environment.folder.mkdir()
    marker = environment.folder / INSTALLING
    marker.touch()
    result = subprocess.run(
        [sys.executable, "-m", "venv", str(environment.folder)],
        env=clean_variables(),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise SetupError(f"could not make {environment.folder}:\n{result.stdout}{result.stderr}")
    marker.unlink()


def install(environment: Environment) -> None:
    """Install the locks, showing how many packages are there."""
    lines = pinned(environment)
    marker = environment.folder / INSTALLING
    with Progress(f"{environment.folder.name}: packages", total=len(lines)) as progress:

        def follow(line: str) -> None:
            act, _, rest = line.strip().partition(" ")
            if act in ("Collecting", "Requirement"):
                progress.count += 1
                progress.note = f"found {rest.split()[0] if act == 'Collecting' else rest.split()[2]}"
            elif act == "Downloading":
                progress.note = f"downloading {rest.rsplit('/', 1)[-1]}"
            elif act == "Building":
                progress.note = "building " + rest
            elif line.startswith("Installing collected"):
                marker.touch()
                progress.count = len(lines) - len(rest.split(","))
                done = progress.count - count_packages(environment)
                progress.note, progress.poll = "unpacking", lambda: done + count_packages(environment)

        install_pinned(lines, Pip(environment.python, environment.folder / "install.log", follow))
    marker.unlink(missing_ok=True)


def count_packages(environment: Environment) -> int:
    return sum(1 for _ in environment.site_packages.glob("*.dist-info"))


def write_import_paths(environment: Environment) -> None:
    """Let `python -m engine` work from any folder, without installing the project."""
    if environment.import_paths:
        text = "".join(f"{path}\n" for path in environment.import_paths)
        (environment.site_packages / "starloom.pth").write_text(text)
