"""One member of a process group for weights: rank 0 sends, the others receive. Beside every other group of the process.

Used by both sides, so that they cannot drift apart: the learner sends, vLLM's workers receive (``vllm_transfer.py``).
Gloo moves weights through main memory and works on any machine; NCCL (RCCL on ROCm) from GPU to GPU, each member with a
GPU of its own. On the wire it is the group that vLLM's ``stateless_init_torch_distributed_process_group`` makes.

A group whose host is the loopback address is reachable from this machine only. Leaves out what is sent, in which order,
and who asks for it: ``broadcast_link.py``. Loaded inside vLLM's workers: imports nothing but torch.
"""

import socket
from datetime import timedelta
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, PrefixStore, TCPStore  # type: ignore[attr-defined]

from engine.learner.base import TransferGroup

TIMEOUT_S = 60.0
"""Seconds that a member waits for the others, to join and in each broadcast."""


class GroupMember:
    """A joined member. Every member calls ``send`` (rank 0) or ``receive`` as often, in the same order.

    Both raise ``RuntimeError`` when another member has left or died, or does not take part within the time-out; the
    group is of no use afterwards.
    """

    def __init__(self, backend: Any, device: torch.device) -> None:
        self._backend = backend
        self._device = device

    @classmethod
    def join(cls, group: TransferGroup, rank: int, *, timeout_s: float = TIMEOUT_S) -> Self:
        """Blocks until all are there. Raises ``RuntimeError`` or ``OSError`` if one is not within the time-out."""
        timeout = timedelta(seconds=timeout_s)
        address = f"tcp://{group.host}:{group.port}"
        store = PrefixStore(address, _store(group, rank, timeout))
        if group.backend == "gloo":
            return cls(_gloo(group, rank, store, timeout), torch.device("cpu"))
        if group.backend == "nccl":
            return cls(_nccl(group, rank, store, timeout), torch.device("cuda", torch.cuda.current_device()))
        raise ValueError(f"backend {group.backend!r} of a transfer group: expected gloo or nccl")

    def send(self, tensor: Tensor) -> None:
        """Give a tensor to every other member; returns when they have it or it is on its way."""
        self._broadcast(tensor.detach().to(self._device).contiguous())

    def receive(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """The tensor that rank 0 sends next, on the group's device."""
        tensor = torch.empty(shape, dtype=dtype, device=self._device)
        self._broadcast(tensor)
        return tensor

    def _broadcast(self, tensor: Tensor) -> None:
        if self._backend is None:
            raise RuntimeError("this member has left its transfer group")
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        # As bytes: the same on the wire for every number format, also for those that gloo does not know.
        self._backend.broadcast([tensor.view(-1).view(torch.uint8)], options).wait()

    def leave(self) -> None:
        """Close the connections, which ends the waiting of other members. May be called twice."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.abort()


def _store(group: TransferGroup, rank: int, timeout: timedelta) -> TCPStore:
    """Where the members find each other; rank 0 serves it."""
    listener = socket.create_server((group.host, group.port)).detach() if rank == 0 else None
    return TCPStore(
        group.host,
        group.port,
        group.world,
        is_master=rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listener,
    )


def _gloo(group: TransferGroup, rank: int, store: PrefixStore, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout
    local = group.host.startswith("127.") or group.host in ("::1", "localhost")
    # The default device is found by the host's name, which in a container may lead nowhere, or out.
    options._devices = [
        ProcessGroupGloo.create_device(hostname=group.host) if local else ProcessGroupGloo.create_default_device()
    ]
    return ProcessGroupGloo(store, rank, group.world, options)


def _nccl(group: TransferGroup, rank: int, store: PrefixStore, timeout: timedelta) -> Any:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(store, rank, group.world, options)
