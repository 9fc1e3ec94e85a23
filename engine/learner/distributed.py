"""DeepSpeed's process-wide effects in one place: its process group, its logger, its environment variable.

DeepSpeed expects to own the process. Here it is a guest of the controller: it prints nothing, compiles
nothing and leaves no variable behind for processes started later. Leaves out several ranks: a launcher
gives those their group, and this file then only has to join it.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

log = logging.getLogger("engine.learner.deepspeed")


class _ToOurLogger(logging.Filter):
    """Hands DeepSpeed's warnings to our logger and keeps all else from its handler, which uses stdout."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            log.log(record.levelno, "%s", record.getMessage())
        return False


# Before anybody imports DeepSpeed (transformers may): it logs to stdout while being imported.
logging.getLogger("DeepSpeed").addFilter(_ToOurLogger())


def deepspeed() -> ModuleType:
    """The library, imported late: it takes seconds and looks for accelerators."""
    import deepspeed as library

    module: ModuleType = library
    return module


def start_engine(module: nn.Module, config: dict[str, Any]) -> Any:
    """A DeepSpeed engine around ``module`` at one rank; again and again, each destroyed before the next."""
    library = deepspeed()
    _join_group(library)
    with _local_rank():
        engine, *_ = library.initialize(model=module, config=config, dist_init_required=False)
    return engine


def _join_group(library: ModuleType) -> None:
    """A gloo group of this process alone, made once. Its store is memory: no port, no file."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    if not library.comm.is_initialized():
        with _without_shared_memory_op(library):
            library.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)


@contextmanager
def _without_shared_memory_op(library: ModuleType) -> Iterator[None]:
    """Joining would compile C++ collectives (wants ninja on PATH, half a minute) and print about it.

    They are for ranks on one host; one rank has nobody to talk to. DeepSpeed itself goes without where the
    operator counts as incompatible.
    """
    known: dict[str, bool] = library.ops.__compatible_ops__
    name = "deepspeed_shm_comm"
    before = known.get(name)
    known[name] = False
    try:
        yield
    finally:
        if before is not None:
            known[name] = before


@contextmanager
def _local_rank() -> Iterator[None]:
    """DeepSpeed reads LOCAL_RANK while it is set up; rollout engines started later must not inherit it."""
    before = os.environ.get("LOCAL_RANK")
    os.environ.setdefault("LOCAL_RANK", "0")
    try:
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_RANK"]
