"""What every test process needs, whoever starts it: the Makefile's environment, and calm defaults.

DeepSpeed looks for ninja on PATH and for its compiled pieces in TORCH_EXTENSIONS_DIR; without these a test
would compile for minutes or fail. Processes that tests start inherit them.
"""

import gc
import os

import setuptools  # noqa: F401  # before pip (scripts.lock): it refuses to be loaded later, and torch's C++ loader needs it
from hypothesis import settings

from engine.environment import prepare_environment

pytest_plugins = ["tests.stack"]

prepare_environment()
# One thread a process: vLLM's and the learner's share few cores, and spinning threads slow all of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# On a busy machine a slow example says nothing about the code.
settings.register_profile("starloom", deadline=None)
settings.load_profile("starloom")


def pytest_collection_finish() -> None:
    """What was imported for good is looked through by every later collection, up to a second each: put it aside."""
    gc.collect()
    gc.freeze()
