"""DeepSpeed's process-wide effects in one place: process group, accelerator, logger, warnings, environment variables.

DeepSpeed expects to own the process. Here it is a guest: it prints nothing and leaves no variable behind for processes
started later; whatever calls into an engine does so ``as_guest``. One rank is a group of this process alone; of several
ranks each calls ``join`` first. Leaves out who starts the ranks (``ranks.py``).
"""

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch import distributed as dist

log = logging.getLogger("engine.learner.deepspeed")


class _ToOurLogger(logging.Filter):
    """Hands DeepSpeed's warnings to our logger and keeps all else from its handler, which uses stdout."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            log.log(record.levelno, "%s", record.getMessage())
        return False


# Before anybody imports DeepSpeed (transformers may): it logs to stdout while being imported.
logging.getLogger("DeepSpeed").addFilter(_ToOurLogger())

# DeepSpeed 0.19 calls collectives by names that torch 2.13 warns about, once for every call.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)

_LINEAR = nn.functional.linear


# --- ranks ---


def join(rank: int, world: int, address: str) -> None:
    """Be one of ``world`` ranks, which meet at ``address`` (``file:///path`` or ``tcp://host:port``); blocks for all.

    Raises ``ValueError`` for a rank or address that cannot be, ``RuntimeError`` if the others do not come.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is none of {world} ranks")
    dist.init_process_group(_backend(), init_method=address, rank=rank, world_size=world)


def rank_and_world() -> tuple[int, int]:
    """This process's rank and their number: (0, 1) where none were joined."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


Combine = Callable[[Tensor], Tensor]
"""From one rank's tensor to what all of them have, a collective."""


def summed_over_ranks(values: Tensor) -> Tensor:
    """The sum of every rank's tensor, on each of them, on the CPU. NaN stays NaN."""
    values = values.cpu()
    if rank_and_world()[1] > 1:
        dist.all_reduce(values)
    return values


def largest_over_ranks(values: Tensor) -> Tensor:
    """The same with the maximum. Gathered first, because a reduction may drop a NaN and torch's maximum does not."""
    values = values.cpu()
    world = rank_and_world()[1]
    if world == 1:
        return values
    each = [torch.empty_like(values) for _ in range(world)]
    dist.all_gather(each, values)
    return torch.stack(each).amax(0)


def _backend() -> str:
    """NCCL (RCCL on ROCm) opens its connections at the first collective on a GPU, so it costs CPU learners nothing."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


# --- devices and the engine ---


def device_of(choice: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """``auto`` is a GPU where torch finds one. Each rank of a machine has the GPU of its ``LOCAL_RANK``.

    Raises ``ValueError`` where ``cuda`` is asked for and torch finds none.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise ValueError("learner.device is cuda, but torch finds no GPU")
    if choice == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def start_engine(module: nn.Module, config: dict[str, Any], device: torch.device) -> Any:
    """A DeepSpeed engine around ``module``; again and again, each destroyed before the next."""
    with as_guest(), _variable("DS_ACCELERATOR", device.type):
        library = _deepspeed(device)
        _join_alone(library)
        trained = [weight for weight in module.parameters() if weight.requires_grad]
        engine, *_ = library.initialize(model=module, model_parameters=trained, config=config, dist_init_required=False)
    return engine


def stop_engine(engine: Any) -> None:
    """Free what it holds, and put back torch's own linear layer: ZeRO 3 replaces it for every model of the process.

    A later stage would else differ in its last bits from the same stage in a process of its own.
    """
    engine.destroy()
    nn.functional.linear = _LINEAR


def _deepspeed(device: torch.device) -> ModuleType:
    """The library, imported late: it takes seconds and looks for accelerators.

    Whoever imported it first may have let it find another accelerator than the one that this learner is for.
    """
    import deepspeed as library
    import deepspeed.runtime.bf16_optimizer
    from deepspeed.accelerator import get_accelerator, set_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
    from deepspeed.accelerator.cuda_accelerator import CUDA_Accelerator

    if get_accelerator().device_name() != device.type:
        set_accelerator(CUDA_Accelerator() if device.type == "cuda" else CPU_Accelerator())
    # The bf16 optimizer prints the machine's memory to stdout while it is made, whatever the level of its logger.
    library.runtime.bf16_optimizer.see_memory_usage = lambda *_, **__: None
    module: ModuleType = library
    return module


def _join_alone(library: ModuleType) -> None:
    """Unless this is one of several ranks, a group of this process, made once. Its store is memory: no port or file."""
    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(_backend(), store=store, rank=0, world_size=1)
    if not library.comm.is_initialized():
        with _without_shared_memory_op(library):
            library.init_distributed(dist.get_backend(), auto_mpi_discovery=False, verbose=False)


@contextmanager
def _without_shared_memory_op(library: ModuleType) -> Iterator[None]:
    """Joining would compile C++ collectives for ranks on one host (wants ninja, half a minute) and print about it.

    Gloo does without, and one rank has nobody to talk to. DeepSpeed itself goes without where the operator counts as
    incompatible.
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
def as_guest() -> Iterator[None]:
    """Around every use of an engine: ZeRO 3 reads LOCAL_RANK in forward and backward passes too."""
    with _variable("LOCAL_RANK", "0"):
        yield


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """DeepSpeed reads it; processes started later must not inherit it. What a rank's launcher has set stays."""
    before = os.environ.get(name)
    os.environ.setdefault(name, value)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
