"""A learner's state by parameter name: whole tensors, whatever the ranks and the ZeRO stage that held them.

``master/<name>`` are the fp32 weights that the optimizer steps on, ``adam/exp_avg/<name>``, ``adam/exp_avg_sq/<name>``
and ``muon/momentum_buffer/<name>`` its tensors, ``rng/<device>/<rank>`` the states of torch's generators. Frozen
parameters have none of these: a LoRA run takes them from its starting model again. A state is written as safetensors
and JSON, without pickle, so reading a stranger's checkpoint runs none of their code.

On as many ranks and the same ZeRO stage a learner goes on equal to the bit. On others the same numbers are restored,
and it goes on equal to fp32 rounding. Leaves out learning rates, which are functions of the step, how DeepSpeed holds
a tensor (``holders.py``), and folders that appear at once (``checkpoint.py``).
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.learner.base import CheckpointMismatch
from engine.learner.checkpoint import ModelCard, read_card, safetensors_errors_as_os_errors, write_card
from engine.learner.holders import Holder, holder_of

TENSORS = "state.safetensors"


@dataclass
class LearnerState:
    """Copies on the CPU, and small numbers: ``updates``, ``ranks``, ``step`` (optimizer steps by parameter name)."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)


def gather_state(engine: Any, module: nn.Module, *, updates: int) -> LearnerState | None:
    """The state of a DeepSpeed engine around ``module``, on rank 0; None on the others. All ranks must call it.

    One tensor at a time is whole, so ranks other than 0 need no memory for it.
    """
    holder = holder_of(engine)
    state = LearnerState(numbers={"updates": updates, "ranks": torch.distributed.get_world_size(), "step": {}})
    for name, weight in _trained(module):
        _keep(state, f"master/{name}", holder.read(weight, None))
        for key in holder.keys(weight):
            _keep(state, f"{holder.method(weight)}/{key}/{name}", holder.read(weight, key))
        if (step := holder.step(weight)) is not None:
            state.numbers["step"][name] = step
    for place, generator in _generators(engine).items():
        for rank, bits in enumerate(_from_all_ranks(generator.get_state(), engine.device)):
            _keep(state, f"rng/{place}/{rank}", bits)
    return state if torch.distributed.get_rank() == 0 else None


def scatter_state(engine: Any, module: nn.Module, state: LearnerState) -> int:
    """Go on from ``state``; every rank must call it with the same one. Returns the number of updates done.

    Raises ``CheckpointMismatch`` before anything is changed, for other parameters, shapes or another optimizer. A
    rank that the state knows no generators of keeps its own.
    """
    holder = holder_of(engine)
    _refuse_others(holder, module, state)
    steps: dict[str, int] = state.numbers["step"]
    keys = {name: _keys_of(state, holder.method(weight), name) for name, weight in _trained(module)}
    for name, weight in _trained(module):  # all first: parameters may share the tensors that this makes and clears
        holder.prepare(weight, keys[name], steps.get(name))
    for name, weight in _trained(module):
        holder.write(weight, None, state.tensors[f"master/{name}"])
        for key in keys[name]:
            holder.write(weight, key, state.tensors[f"{holder.method(weight)}/{key}/{name}"])
    holder.replay(max(steps.values(), default=0))
    holder.publish()
    for place, generator in _generators(engine).items():
        if (bits := state.tensors.get(f"rng/{place}/{torch.distributed.get_rank()}")) is not None:
            generator.set_state(bits)
    return int(state.numbers["updates"])


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]


def _keep(state: LearnerState, name: str, value: Tensor) -> None:
    if torch.distributed.get_rank() == 0:
        state.tensors[name] = value.detach().to("cpu", copy=True)


def _keys_of(state: LearnerState, method: str, name: str) -> list[str]:
    """Optimizer tensors that the state has of a parameter; none before the first step."""
    ends = f"/{name}"
    return [
        key.removeprefix(f"{method}/").removesuffix(ends)
        for key in state.tensors
        if key.startswith(f"{method}/") and key.endswith(ends)
    ]


def _refuse_others(holder: Holder, module: nn.Module, state: LearnerState) -> None:
    ours = {f"master/{name}": holder.shape(weight) for name, weight in _trained(module)}
    theirs = {name: tuple(value.shape) for name, value in state.tensors.items() if name.startswith("master/")}
    if ours != theirs:
        differing = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        raise CheckpointMismatch(
            f"the checkpoint trains other parameters than this learner, {len(differing)} differ: {differing[0]} has "
            f"shape {theirs.get(differing[0], 'none')} there and {ours.get(differing[0], 'none')} here"
        )
    for name, weight in _trained(module):
        for method in {"adam", "muon"} - {holder.method(weight)}:
            if _keys_of(state, method, name):
                raise CheckpointMismatch(
                    f"the checkpoint trains {name} with {method}, this learner with {holder.method(weight)}"
                )


def _generators(engine: Any) -> dict[str, torch.Generator]:
    """Torch's generators of this process, by device type."""
    found = {"cpu": torch.default_generator}
    if torch.device(engine.device).type == "cuda":
        found["cuda"] = torch.cuda.default_generators[torch.cuda.current_device()]
    return found


def _from_all_ranks(value: Tensor, device: torch.device) -> list[Tensor]:
    """The same small tensor of every rank; by way of the device that the ranks can talk on."""
    mine = value.to(device)
    parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, mine)
    return parts


def write_state(folder: Path, state: LearnerState, card: ModelCard) -> None:
    """Write to ``folder``: tensors, and a card that names the model, the schema and what each file must be.

    Raises ``OSError`` with the system's number, such as ``ENOSPC`` for a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / TENSORS
    with safetensors_errors_as_os_errors(path):
        save_file(state.tensors, path)
    write_card(folder, model=card, contents={"numbers": state.numbers, "files": {TENSORS: _fingerprint(path)}})


def read_state(folder: Path, card: ModelCard) -> LearnerState:
    """What ``write_state`` wrote; the tensors are mapped from the file, not read into memory of each rank.

    Raises ``CheckpointMismatch`` for another model or schema, both named, and for a damaged file.
    """
    contents = read_card(folder, model=card)
    path = folder / TENSORS
    try:
        expected, found = contents["files"][TENSORS], _fingerprint(path)
        if expected != found:
            raise CheckpointMismatch(f"{path} is damaged: {_shown(found)}, it was written as {_shown(expected)}")
        return LearnerState(load_file(path), contents["numbers"])
    except (OSError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointMismatch(f"{folder} is damaged: {error!r}") from error


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _shown(fingerprint: dict[str, Any]) -> str:
    return f"{fingerprint['bytes']:,} bytes with SHA-256 {fingerprint['sha256'][:12]}"
