"""What a process of ours needs around it, set by itself, whoever starts it (a shell, Celery, Slurm).

DeepSpeed finds ninja only on PATH and its compiled pieces only through TORCH_EXTENSIONS_DIR (the default is per HOME).
Where there is no GPU it is told so: left to find out, it warns on every start.
"""

import gc
import os
import sys
from pathlib import Path

GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


def prepare_environment() -> None:
    """Put the interpreter's own environment first. Call before torch is imported; keeps what the caller has set."""
    prefix = Path(sys.prefix)
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if str(prefix / "bin") not in folders[:1]:
        os.environ["PATH"] = os.pathsep.join([str(prefix / "bin"), *folders])
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(prefix / "torch_extensions"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not any(Path(device).exists() for device in GPU_DEVICES):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def spare_the_event_loop() -> None:
    """Take what was imported and opened, which stays to the end, out of what Python's collector goes through.

    Left there, it holds the event loop for a quarter of a second now and then.
    """
    gc.collect()
    gc.freeze()
