"""How a DeepSpeed engine holds masters and optimizer tensors: whole, as flat shares (ZeRO 1 and 2), or by ZeRO 3.

One face over the three, tensor by tensor, for ``state.py``. Reading a whole tensor is a collective, and so is
``publish``; all ranks call both for the same parameters in the same order. DeepSpeed's `safe_*` functions are used
where they exist; what they lack is made here: optimizer tensors before the first step (Adam and Muon make theirs
lazily), padded shares in ZeRO 3, and the running products inside DeepSpeed's CPU Adam. Read from DeepSpeed 0.19.8.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def holder_of(engine: Any) -> "Holder":
    """Raises ``TypeError`` for an optimizer that has no fp32 masters by name, such as bf16 without ZeRO."""
    optimizer = engine.optimizer
    if engine.zero_optimization_stage() == 3:
        return _Zero3(optimizer)
    if hasattr(optimizer, "update_lp_params"):
        return _Shares(optimizer)
    if isinstance(optimizer, torch.optim.Optimizer):
        return _Whole(optimizer)
    raise TypeError(f"the state of a {type(optimizer).__name__} cannot be stored by parameter name")


class Holder(ABC):
    """Masters and optimizer tensors of an engine, by parameter. ``key`` names an optimizer tensor; None: the master."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        """The innermost one: torch's or DeepSpeed's Adam, DeepSpeed's Muon."""

    @abstractmethod
    def shape(self, weight: nn.Parameter) -> tuple[int, ...]:
        """Of the whole tensor."""

    @abstractmethod
    def read(self, weight: nn.Parameter, key: str | None) -> Tensor:
        """A whole tensor on the engine's device, on every rank."""

    @abstractmethod
    def write(self, weight: nn.Parameter, key: str | None, value: Tensor) -> None:
        """Take this rank's share of a whole tensor; after ``prepare``."""

    @abstractmethod
    def publish(self) -> None:
        """Make the weights of the forward pass from the masters."""

    @abstractmethod
    def _stepped(self, weight: nn.Parameter) -> Tensor:
        """The tensor that the optimizer steps on for this parameter: itself, or a flat one that holds a share of it."""

    @abstractmethod
    def _group(self, weight: nn.Parameter) -> dict[str, Any]:
        """The optimizer's parameter group that the parameter is in."""

    def method(self, weight: nn.Parameter) -> str:
        """``adam`` or ``muon``."""
        return "muon" if self._group(weight).get("use_muon") else "adam"

    def keys(self, weight: nn.Parameter) -> list[str]:
        """Optimizer tensors that exist now; none before the first step."""
        stepped = self._stepped(weight)
        found = {k: v for k, v in self.optimizer.state.get(stepped, {}).items() if torch.is_tensor(v) and v.ndim}
        for key, value in found.items():
            if value.shape != stepped.shape:
                raise TypeError(f"optimizer tensor {key} of shape {tuple(value.shape)} is not laid out as the weights")
        return list(found)

    def step(self, weight: nn.Parameter) -> int | None:
        """Optimizer steps done, where the method counts them (Adam)."""
        count = self.optimizer.state.get(self._stepped(weight), {}).get("step")
        return None if count is None else int(count)

    def prepare(self, weight: nn.Parameter, keys: Sequence[str], step: int | None) -> None:
        """Have these optimizer tensors exist, all zero, and ``step`` optimizer steps counted."""
        stepped = self._stepped(weight)
        there = self.keys(weight)
        entries = self.optimizer.state[stepped]
        for key in there:
            entries[key].zero_()
        for key in keys:
            if key not in there:
                entries[key] = torch.zeros_like(stepped)
        if step is not None or "step" in entries:
            entries["step"] = self._counter(step or 0)

    def _counter(self, step: int) -> Tensor | int:
        """Torch's Adam counts in a tensor on the CPU, DeepSpeed's in a number."""
        adam = getattr(self.optimizer, "aux_optimizer", self.optimizer)
        return torch.tensor(float(step)) if isinstance(adam, torch.optim.Adam | torch.optim.AdamW) else step

    def replay(self, steps: int) -> None:
        """Bring DeepSpeed's CPU Adam to where ``steps`` steps bring it.

        It keeps beta^t in C++ as a running product. A fresh one that is told a later t takes a power instead, which
        differs in the last bits, and so would every weight after it.
        """
        kernel = getattr(self.optimizer, "ds_opt_adam", None)
        if kernel is not None:
            group, nothing = self.optimizer.param_groups[0], [torch.zeros(1)] * 4
            for step in range(1, steps + 1):
                kernel.adam_update(self.optimizer.opt_id, step, 0.0, *group["betas"], group["eps"], 0.0, True, *nothing)


class _Whole(Holder):
    """ZeRO 0: every rank steps on the parameters themselves."""

    def shape(self, weight: nn.Parameter) -> tuple[int, ...]:
        return tuple(weight.shape)

    def _stepped(self, weight: nn.Parameter) -> Tensor:
        return weight

    def _group(self, weight: nn.Parameter) -> dict[str, Any]:
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return next(group for group in groups if any(each is weight for each in group["params"]))

    def read(self, weight: nn.Parameter, key: str | None) -> Tensor:
        found: Tensor = weight.detach() if key is None else self.optimizer.state[weight][key]
        return found

    def write(self, weight: nn.Parameter, key: str | None, value: Tensor) -> None:
        self.read(weight, key).copy_(value)

    def publish(self) -> None:
        """Masters and weights are the same tensors."""


class _Shares(Holder):
    """ZeRO 1 and 2, and DeepSpeed's bf16 optimizer: each rank has a flat share of each parameter group."""

    def __init__(self, zero: Any) -> None:
        super().__init__(zero.optimizer)
        self._zero = zero
        groups = zero.bit16_groups if hasattr(zero, "bit16_groups") else zero.bf16_groups
        self._place = {id(weight): place for place, group in enumerate(groups) for weight in group}

    def shape(self, weight: nn.Parameter) -> tuple[int, ...]:
        return tuple(weight.shape)

    def _stepped(self, weight: nn.Parameter) -> Tensor:
        flat: Tensor = self._group(weight)["params"][0]
        return flat

    def _group(self, weight: nn.Parameter) -> dict[str, Any]:
        group: dict[str, Any] = self.optimizer.param_groups[self._place[id(weight)]]
        return group

    def read(self, weight: nn.Parameter, key: str | None) -> Tensor:
        return _gathered(weight, key)

    def prepare(self, weight: nn.Parameter, keys: Sequence[str], step: int | None) -> None:
        super().prepare(weight, keys, step)
        linked: Any = weight
        if linked._hp_mapping is not None:  # this rank's share has something of the parameter
            stepped = self._stepped(weight)
            linked._hp_mapping.set_optim_state_fragment(stepped, self.optimizer.state[stepped])

    def write(self, weight: nn.Parameter, key: str | None, value: Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        if key is None:
            safe_set_full_fp32_param(weight, value)
        else:
            safe_set_full_optimizer_state(weight, value, key)

    def publish(self) -> None:
        self._zero.update_lp_params()


class _Zero3(Holder):
    """ZeRO 3: each rank has a padded share of each parameter, the weights of the forward pass too."""

    def __init__(self, zero: Any) -> None:
        super().__init__(zero.optimizer)
        self._zero = zero

    def shape(self, weight: nn.Parameter) -> tuple[int, ...]:
        partitioned: Any = weight
        return tuple(partitioned.ds_shape)

    def _subgroup(self, weight: nn.Parameter) -> int:
        place, _, _ = self._zero.grad_position[self._zero.get_param_id(weight)]
        return int(place)

    def _stepped(self, weight: nn.Parameter) -> Tensor:
        flat: Tensor = self._zero.fp32_partitioned_groups_flat[self._subgroup(weight)]
        return flat

    def _group(self, weight: nn.Parameter) -> dict[str, Any]:
        place = self._zero.sub_group_to_group_id[self._subgroup(weight)]
        group: dict[str, Any] = self.optimizer.param_groups[place]
        return group

    def read(self, weight: nn.Parameter, key: str | None) -> Tensor:
        return _gathered(weight, key)

    def write(self, weight: nn.Parameter, key: str | None, value: Tensor) -> None:
        from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

        share = self._share(weight, value)
        if key is None:
            safe_set_local_fp32_param(weight, share)
        else:
            safe_set_local_optimizer_state(weight, share, key)

    def _share(self, weight: nn.Parameter, value: Tensor) -> Tensor:
        """Padded by hand: ``safe_set_full_*`` reads past the end of a tensor that the ranks do not divide."""
        partitioned: Any = weight
        size, rank = partitioned.ds_tensor.numel(), self._zero._get_param_partition_rank(weight)
        share = value.new_zeros(size)
        mine = value.flatten()[rank * size : (rank + 1) * size]
        share[: mine.numel()] = mine
        return share

    def publish(self) -> None:
        """As DeepSpeed's own loading does: every share from its master, then the small weights that stay whole."""
        self._zero.checkpoint_event_prologue()
        for place in range(len(self._zero.fp32_partitioned_groups_flat)):
            self._zero._reassign_or_swap_out_partitioned_parameters(place)
        self._zero.checkpoint_event_epilogue()


def _gathered(weight: nn.Parameter, key: str | None) -> Tensor:
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    found: Tensor = safe_get_full_fp32_param(weight) if key is None else safe_get_full_optimizer_state(weight, key)
    return found
