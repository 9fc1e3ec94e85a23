"""DeepSpeed's C++ pieces, built once into the environment instead of at the first training step.

`shm_comm` is what `init_distributed` builds, `cpu_adam` and `fused_adam` are the optimizers. Built later,
they would stall a run for minutes, or fail it where the environment's `bin` (with ninja) is not on PATH. A
process that uses them needs what `variables` adds: `.venv/bin` first on PATH and TORCH_EXTENSIONS_DIR.
"""

import hashlib
import os
import subprocess
import time
from pathlib import Path

from scripts.environments import STAMP, Environment, pinned
from scripts.packages import SetupError, clean_variables
from scripts.progress import Progress

BUILDERS = ("ShareMemCommBuilder", "CPUAdamBuilder", "FusedAdamBuilder")
BUILD = """
import sys
from deepspeed.accelerator import get_accelerator
get_accelerator().create_op_builder(sys.argv[1]).load()
"""
STALE_LOCK_S = 60


def folder(environment: Environment) -> Path:
    return environment.folder / "torch_extensions"


def variables(environment: Environment) -> dict[str, str]:
    """What a process that runs DeepSpeed needs."""
    clean = clean_variables()
    path = f"{environment.folder / 'bin'}{os.pathsep}{clean.get('PATH', os.defpath)}"
    return {**clean, "PATH": path, "TORCH_EXTENSIONS_DIR": str(folder(environment))}


def digest(environment: Environment) -> str:
    """Changes with the packages they are compiled against, the place, and the CPU they are built for."""
    packages = [line for line in pinned(environment) if line.startswith(("torch==", "deepspeed=="))]
    flags = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("model name", "flags"))
    ]
    return hashlib.sha256("\n".join([*packages, str(environment.folder), *flags[:2]]).encode()).hexdigest()


def is_ready(environment: Environment) -> bool:
    stamp = folder(environment) / STAMP
    return stamp.exists() and stamp.read_text() == digest(environment)


def build(environment: Environment) -> None:
    """Build what is missing; a build that was cut short is taken up again."""
    stamp = folder(environment) / STAMP
    stamp.unlink(missing_ok=True)
    folder(environment).mkdir(exist_ok=True)
    drop_locks(environment, older_than_s=0)
    with Progress("DeepSpeed: C++ pieces (a few minutes)", total=len(BUILDERS)) as progress:
        for number, builder in enumerate(BUILDERS):
            progress.count, progress.note = number, f"compiling {builder.removesuffix('Builder')}"
            build_one(environment, builder)
    stamp.write_text(digest(environment))


def build_one(environment: Environment, builder: str) -> None:
    result = subprocess.run(
        [str(environment.python), "-c", BUILD, builder],
        env=variables(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    log = folder(environment) / f"{builder}.log"
    log.write_text(result.stdout + result.stderr)
    if result.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        raise SetupError(f"could not compile DeepSpeed's {builder} (whole output: {log}):\n{tail}")


def drop_locks(environment: Environment, older_than_s: float = STALE_LOCK_S) -> None:
    """Remove torch's lock files that a killed process left: the next process would wait for them for ever."""
    for lock in folder(environment).glob("*/lock"):
        if time.time() - lock.stat().st_mtime >= older_than_s:
            lock.unlink(missing_ok=True)
