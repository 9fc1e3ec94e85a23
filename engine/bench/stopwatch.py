"""Seconds of a step: on the wall, and of processor time, which other work on the machine hardly moves."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Seconds:
    wall: float
    cpu: float


def timed(step: Callable[[], object], device: torch.device) -> Seconds:
    """One call, from an idle device to an idle device."""
    synchronise(device)
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    synchronise(device)
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(device: torch.device, dtype: torch.dtype, *, size: int, repeats: int = 20) -> float:
    """Floating-point operations a second of the device's own product of two square matrices: the best of some."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = [timed(lambda: left @ right, device).wall for _ in range(repeats)]
    return 2 * size**3 / min(seconds)
