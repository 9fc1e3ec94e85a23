"""Loaded inside vLLM's workers: weights from a process group, through vLLM's own weight-transfer calls.

vLLM brings transfers for GPUs only. Importing this module, which ``--worker-extension-cls`` makes every worker do
before the model is loaded, registers one more under ``BACKEND``; ``--weight-transfer-config`` then names it. A worker
takes each tensor as it comes and hands it to vLLM's layerwise reload, which makes new prepacked copies of matrices too.

Leaves out the calls themselves (``engine.rollout.vllm_engine``) and imports nothing heavy of ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from engine.learner.base import TransferGroup
from engine.weights.process_group import GroupMember

BACKEND = "starloom"


@dataclass
class JoinInfo(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM has no types for us
    """``init_info`` of ``/init_weight_transfer_engine``: the group, and the rank of the engine's first worker."""

    host: str
    port: int
    world: int
    backend: str
    first_rank: int


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """``update_info`` of ``/update_weights``: what is sent, in that order; one entry of each list a tensor."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class BroadcastReceiver(WeightTransferEngine):  # type: ignore[misc]
    """One worker's end. A receive that fails leaves the group, so that the learner is not kept waiting for it."""

    init_info_cls = JoinInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False
    _member: GroupMember | None = None

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        """Join, in place of any group before."""
        self.shutdown()
        group = TransferGroup(init_info.host, init_info.port, init_info.world, init_info.backend)
        self._member = GroupMember.join(group, init_info.first_rank + self._worker())

    def _worker(self) -> int:
        """This worker's number in its engine, over tensor, pipeline and data parallel ranks."""
        parallel = self.parallel_config
        return int(parallel.data_parallel_index * parallel.world_size + parallel.rank)

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, object]) -> None:
        """As vLLM's own, but for machines without an accelerator too."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        try:
            self.model.load_weights(self._tensors(update_info))
        except BaseException:
            self.shutdown()
            raise

    def _tensors(self, update_info: UpdateInfo) -> Iterator[tuple[str, Tensor]]:
        if self._member is None:
            raise RuntimeError("this worker is in no transfer group")
        for name, dtype, shape in zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True):
            tensor = self._member.receive(getattr(torch, dtype), tuple(shape))
            yield name, tensor.to(self.device)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the group. May be called twice."""
        member, self._member = self._member, None
        if member is not None:
            member.leave()


class WorkerExtension:
    """What ``--worker-extension-cls`` names; loading its module is all that is wanted."""


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, BroadcastReceiver)
