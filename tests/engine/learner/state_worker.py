"""What ``test_state.py`` runs in processes of its own: real DeepSpeed engines on a model of awkward sizes.

Batches are drawn from torch's generator of each rank, so going on equally needs that too. Leaves out the learner.
"""

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.learner.base import CheckpointMismatch
from engine.learner.checkpoint import ModelCard
from engine.learner.state import LearnerState, gather_state, read_state, scatter_state, write_state

CARD = ModelCard("Awkward", 7, 2, 0, "digest")
Trace = list[tuple[float, dict[str, Tensor]]]


class Awkward(nn.Module):
    """No size is a multiple of two ranks or of an alignment; one weight is tied, one is frozen."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 7)
        self.up = nn.Linear(7, inner)
        self.frozen = nn.Linear(inner, inner)
        self.down = nn.Linear(inner, 7, bias=False)
        self.norm = nn.LayerNorm(7)
        self.lm_head = nn.Linear(7, 13, bias=False)
        self.lm_head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, ids_BT: Tensor) -> Tensor:
        hidden_BTH = self.embed(ids_BT)
        hidden_BTH = self.norm(hidden_BTH + self.down(torch.tanh(self.frozen(self.up(hidden_BTH)))))
        logits_BTV: Tensor = self.lm_head(hidden_BTH)
        return logits_BTV


@dataclass(frozen=True)
class Setup:
    """A way of training; ``zero`` is DeepSpeed's stage. ``before`` steps are done when the state is taken."""

    zero: int
    optimizer: str = "AdamW"
    precision: str = "fp32"
    offload: bool = False
    before: int = 3
    inner: int = 5

    def __str__(self) -> str:
        offload = "-offload" if self.offload else ""
        return f"zero{self.zero}-{self.optimizer}-{self.precision}{offload}-{self.before}-{self.inner}"

    @property
    def after(self) -> int:
        return max(3, self.before)

    def config(self) -> dict[str, Any]:
        adam = {"lr": 1e-2, "betas": [0.9, 0.95], "weight_decay": 0.1, "torch_adam": not self.offload}
        muon = {"muon_lr": 1e-2, "adam_lr": 1e-2, "momentum": 0.9, "betas": [0.9, 0.95], "torch_adam": True}
        zero: dict[str, Any] = {"stage": self.zero}
        if self.offload:
            zero["offload_optimizer"] = {"device": "cpu"}
        half = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
        return {
            "train_micro_batch_size_per_gpu": 2,
            "steps_per_print": 10**9,
            "optimizer": {"type": self.optimizer, "params": muon if self.optimizer == "Muon" else adam},
            "gradient_clipping": 1.0,
            "zero_optimization": zero,
            **(half if self.precision == "bf16" else {}),
        }


def join(rank: int, world: int, store: Path) -> None:
    import deepspeed

    os.environ["LOCAL_RANK"] = str(rank)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    deepspeed.comm.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)


def start(setup: Setup) -> tuple[Any, Awkward]:
    """An engine on the same first weights everywhere; generators differ between ranks."""
    import deepspeed

    torch.manual_seed(5)
    module = Awkward(setup.inner)
    if setup.precision == "bf16":
        module.to(torch.bfloat16)
    engine, *_ = deepspeed.initialize(model=module, config=setup.config(), dist_init_required=False)
    torch.manual_seed(100 + torch.distributed.get_rank())
    return engine, module


def train(engine: Any, module: Awkward, steps: int, *, shared: bool = False) -> Trace:
    """Loss and all weights of the pass after each step; with ``shared`` the ranks learn from the same batches."""
    trace: Trace = []
    generator = torch.Generator().manual_seed(7) if shared else None
    for _ in range(steps):
        ids_BT = torch.randint(0, 13, (2, 6), generator=generator)
        logits_BTV = engine(ids_BT)
        loss = nn.functional.cross_entropy(logits_BTV[:, :-1].float().flatten(0, 1), ids_BT[:, 1:].flatten())
        engine.backward(loss)
        with torch.compiler.set_stance("force_eager"):
            engine.step()
        trace.append((loss.item(), weights(module)))
    return trace


def weights(module: Awkward) -> dict[str, Tensor]:
    import deepspeed

    with deepspeed.zero.GatheredParameters([p for p in module.parameters() if hasattr(p, "ds_id")]):
        return {name: value.detach().clone() for name, value in module.named_parameters()}


def save(setup: Setup, folder: Path) -> tuple[Trace, Trace]:
    """Train, write the state, go on; then take the same engine back to the state and go on again."""
    engine, module = start(setup)
    train(engine, module, setup.before)
    state = gather_state(engine, module, updates=setup.before)
    went_on = train(engine, module, setup.after)
    if state is not None:
        write_state(folder, state, CARD)
    torch.distributed.barrier()
    scatter_state(engine, module, read_state(folder, CARD))
    again = train(engine, module, setup.after)
    engine.destroy()
    return went_on, again


def resume(setup: Setup, folder: Path, *, shared: bool) -> tuple[int, LearnerState | None, Trace]:
    """A fresh engine brought to a state: updates done, the state read back from it, further steps."""
    engine, module = start(setup)
    updates = scatter_state(engine, module, read_state(folder, CARD))
    state = gather_state(engine, module, updates=updates)
    trace = train(engine, module, setup.after, shared=shared)
    engine.destroy()
    return updates, state, trace


def refuse(setup: Setup, folder: Path) -> tuple[str, bool]:
    """What a fresh engine says of another's state, and whether its weights stayed as they were."""
    engine, module = start(setup)
    before = weights(module)
    try:
        scatter_state(engine, module, read_state(folder, CARD))
        said = "nothing"
    except CheckpointMismatch as error:
        said = str(error)
    same = all(torch.equal(value, before[name]) for name, value in weights(module).items())
    engine.destroy()
    return said, same


@dataclass(frozen=True)
class Task:
    """One of the functions above, with its arguments; the result goes to ``name-<rank>`` in the common folder."""

    name: str
    function: str
    setup: Setup
    folder: Path
    options: tuple[tuple[str, bool], ...] = ()


def life(rank: int, world: int, root: Path, store: str, tasks: Sequence[Task]) -> None:
    """One process: everything that its ranks do together."""
    gc.freeze()  # DeepSpeed collects garbage many times while an engine starts: not among all that is imported
    join(rank, world, root / store)
    for task in tasks:
        result = globals()[task.function](task.setup, task.folder, **dict(task.options))
        torch.save(result, root / f"{task.name}-{rank}")
