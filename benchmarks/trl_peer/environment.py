"""A throw-away environment with TRL in it: the project's packages, and beside them the few that TRL needs more.

torch and transformers are the project's own, so that a difference between TRL and us is none of theirs.
"""

import atexit
import shutil
import sysconfig
import tempfile
from pathlib import Path

from scripts.environments import Environment, make

LOCK = Path(__file__).with_name("requirements.lock")


def trl_environment() -> Path:
    """Make the environment in a temporary folder and return its Python; the folder goes when this process ends.

    Shows one line of progress. Raises ``scripts.packages.SetupError``, with the end of pip's output and what to check,
    where the packages cannot be had (no network and no index that holds them).
    """
    folder = Path(tempfile.mkdtemp(prefix="starloom-trl-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environment = Environment(folder / "trl", (LOCK,), import_paths=(Path(sysconfig.get_path("purelib")),))
    make(environment)
    return environment.python
