"""The most memory that tensors take at one time: torch's own count on a GPU, a count of live storages on the CPU.

On the CPU, a process's resident memory says little about tensors: libraries are most of it and freed memory stays.
Leaves out what a kernel allocates and frees inside itself.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts bytes of storages from when an operation first takes or makes them until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self.peak_bytes = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        result = func(*args, **given)
        for leaf in tree_leaves((args, given, result)):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._known:
            self._known.add(storage)
            self.bytes += storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.bytes)
            weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self.bytes -= size


def peak_bytes(step: Callable[[], object], device: torch.device) -> int:
    """The most that tensors took during ``step``, those that it uses and were there before included."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return int(torch.cuda.max_memory_allocated(device))
    with LiveStorages() as storages:
        step()  # what is only touched near its end counts from the beginning of the next
        storages.peak_bytes = storages.bytes
        step()
    return int(storages.peak_bytes)
