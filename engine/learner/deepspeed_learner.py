"""One rank of a learner, on DeepSpeed: SFT and RL updates, weights for rollout engines, checkpoints.

Ranks do the same calls in the same order with the same batch; each takes its share of the packs. A pack contributes its
sum of token losses over the tokens of the whole update, times the number of ranks, since DeepSpeed takes the mean over
them. So loss and gradient are the same for every cut and every number of ranks. A loss or gradient that is not finite,
on any rank, skips the step on all of them: weights and optimizer stay as they were to the bit, and the metric
``skipped`` says so.

Leaves out how ranks are started and driven (``ranks.py``), how DeepSpeed steps (``stepper.py``), the optimizers'
settings (``optim.py``), and what a state is (``state.py``).
"""

import gc
import itertools
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from engine.contract.resources import LearnerResources
from engine.contract.stages import RlStage, SftStage, TrainedStage
from engine.learner import distributed
from engine.learner.base import Sample, Saving, TransferGroup, UpdateResult, WeightSpec
from engine.learner.checkpoint import safetensors_errors_as_os_errors
from engine.learner.optim import Optim
from engine.learner.packing import Pack, pack_batch, trained_tokens
from engine.learner.policy_model import ModelSettings, PolicyModel, write_model
from engine.learner.state import gather_state, read_state, scatter_state, write_state
from engine.learner.stepper import Stepper
from engine.learner.tally import Tally
from engine.objective.base import LossTerms, Tokens
from engine.objective.metrics import metrics_of
from engine.objective.normalisation import token_mean
from engine.objective.registry import objective_of
from engine.weights.process_group import GroupMember

Loss = Callable[[Tokens], LossTerms]


def cross_entropy(tokens: Tokens) -> LossTerms:
    """SFT's loss: -log p of every trained token. Sums ``nll`` and ``entropy`` are in nats."""
    nll = -tokens.logp_T.sum()
    sums = {"nll": nll.detach().double()}
    if tokens.entropy_T is not None:
        sums["entropy"] = tokens.entropy_T.detach().sum(dtype=torch.float64)
    return LossTerms(sum=nll, sums=sums)


@dataclass(frozen=True, slots=True)
class Task:
    """What a learner minimises: a loss over trained tokens, scored at ``temperature``."""

    loss: Loss
    temperature: float = 1.0
    entropy_gradient: bool = False
    call: str = "sft_update"
    """The learner's method that does it; the other one is refused."""


class DeepSpeedLearner:
    """``Learner`` of one stage, one rank of it. Every call blocks; all of them belong on one thread.

    Several may follow one another in a process, each closed before the next is made. With several ranks, the process
    has joined them before (``distributed.join``).
    """

    def __init__(
        self,
        model_folder: Path,
        stage: TrainedStage,
        resources: LearnerResources,
        task: Task,
        *,
        reference: Path | None = None,
    ) -> None:
        torch.set_num_threads(resources.threads)
        self.optim = Optim.of(stage, resources)
        self.updates = 0
        self._task = task
        self._micro_batch_tokens = resources.micro_batch_tokens
        self._device = distributed.device_of(resources.device)
        settings = _settings(stage, resources, self._device)
        self._model = PolicyModel(model_folder, settings)
        self._reference = None if reference is None else _frozen(reference, settings)
        trained = sum(weight.numel() for weight in self._model.parameters() if weight.requires_grad)
        self._engine = distributed.start_engine(self._model, self.optim.deepspeed(trained), self._device)
        self._engine.eval()
        self._rank, self._world = distributed.rank_and_world()
        self._stepper = Stepper(self._engine, self._model, self.optim)
        self._has_group = False
        self._group: GroupMember | None = None
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._saving = BackgroundSaving()

    @classmethod
    def for_sft(cls, model_folder: Path, stage: SftStage, resources: LearnerResources) -> "DeepSpeedLearner":
        return cls(model_folder, stage, resources, Task(cross_entropy))

    @classmethod
    def for_rl(
        cls,
        model_folder: Path,
        stage: RlStage,
        resources: LearnerResources,
        *,
        sampler_weight: bool = False,
        reference: Path | None = None,
    ) -> "DeepSpeedLearner":
        """``sampler_weight`` as ``Recipe.weighs_sampler`` says; ``reference`` is the model folder of the KL term."""
        task = Task(
            loss=objective_of(stage, sampler_weight=sampler_weight),
            temperature=stage.temperature,
            entropy_gradient=stage.entropy_coef > 0,
            call="rl_update",
        )
        return cls(model_folder, stage, resources, task, reference=reference)

    # --- updates ---

    def sft_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        """One step of next-token cross-entropy.

        Metrics: ``loss`` (what is minimised), ``nll`` (nats per trained token: equal to it without ``normaliser``),
        ``entropy`` (nats per trained token), ``tokens`` (trained, all ranks), ``grad_norm`` (global 2-norm before
        clipping; NaN if skipped), ``lr``, ``muon_lr``, ``skipped`` (0 or 1), ``seconds``. Without a trained token
        the step is skipped and there are no means.
        """
        return self._update("sft_update", batch, lr_scale, normaliser)

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        """One step of the stage's objective; its own metrics (``clip_frac``, ``ratio_max``...) besides SFT's.

        ``logprob_gap_max`` and ``logprob_gap_mean`` compare the sampler with the learner before the step's first
        update (absolute nats on trained tokens), where samples carry the sampler's log-probabilities.
        """
        return self._update("rl_update", batch, lr_scale, normaliser)

    @distributed.as_guest()
    def _update(self, name: str, batch: Sequence[Sample], lr_scale: float, normaliser: float | None) -> UpdateResult:
        if name != self._task.call:
            raise TypeError(f"{name} on a learner that was made for {self._task.call}")
        began = time.perf_counter()
        tokens = trained_tokens(batch)
        divisor = tokens if normaliser is None else normaliser
        packs = pack_batch(batch, self._micro_batch_tokens, rank=self._rank, world=self._world)
        tally = self._accumulate(packs, divisor)
        grad_norm = self._stepper.step(lr_scale) if packs else math.nan
        skipped = math.isnan(grad_norm)
        self.updates += not skipped
        sums, maxima = tally.over_ranks()
        return UpdateResult(
            {
                "loss": sums.pop("loss", 0.0) / divisor if packs else 0.0,
                **metrics_of(sums, maxima, tokens),
                "tokens": float(tokens),
                "grad_norm": grad_norm,
                "skipped": float(skipped),
                **self.optim.rates(lr_scale),
                "seconds": time.perf_counter() - began,
            }
        )

    def _accumulate(self, packs: Sequence[Pack], divisor: float) -> Tally:
        """Every pack's gradient, added up over packs and ranks."""
        tally = Tally()
        for place, pack in enumerate(packs, start=1):
            self._stepper.expect(last=place == len(packs))
            terms = self._task.loss(self._tokens(pack.to(self._device)))
            tally.add(terms)
            self._stepper.backward(token_mean(terms.sum, divisor, self._world))
        return tally

    def _tokens(self, pack: Pack) -> Tokens:
        scores = self._engine(pack, self._task.temperature, self._task.entropy_gradient)
        return Tokens(
            logp_T=scores.logp_T,
            advantage_T=pack.advantage_T,
            old_T=pack.old_T,
            sampler_T=pack.sampler_T,
            reference_T=pack.reference_T,
            entropy_T=scores.entropy_T,
            after_tool_T=pack.after_tool_T,
        )

    # --- reading ---

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Log-probability of every token of every sample, in their order; 0.0 for each first token.

        In fp32 and at the rollout temperature, whatever ``trained`` says.
        """
        return self._score(self._engine, samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """The same under the reference model. Raises ``RuntimeError`` where none was opened."""
        if self._reference is None:
            raise RuntimeError("this learner was opened without a reference model (kl_beta is 0)")
        return self._score(self._reference, samples)

    @distributed.as_guest()
    @torch.no_grad()
    def _score(self, model: nn.Module, samples: Sequence[Sample]) -> list[list[float]]:
        """Each rank scores its share into a row of zeros over all tokens; their sum is everybody's."""
        lengths = [len(sample.ids) for sample in samples]
        begin_S = torch.tensor([0, *itertools.accumulate(lengths)], device=self._device)
        logp = torch.zeros(sum(lengths), device=self._device)
        everything = [_all_trained(sample) for sample in samples]
        for pack in pack_batch(everything, self._micro_batch_tokens, rank=self._rank, world=self._world):
            on_device = pack.to(self._device)
            scored_T: Tensor = model(on_device, self._task.temperature).logp_T
            logp[begin_S[on_device.row_T] + on_device.position_P[on_device.place_T] + 1] = scored_T
        return [row.tolist() for row in torch.split(distributed.summed_over_ranks(logp), lengths)]

    # --- weights for rollout engines ---

    @distributed.as_guest()
    def export(self, folder: Path) -> None:
        """``config.json`` and ``model.safetensors``, ``lm_head.weight`` included, written by rank 0.

        ``OSError`` (disk full) leaves the older files.
        """
        weights = self._weights_on_cpu()
        if self._rank == 0:
            _write_model(folder, weights, self._model.config_json)

    def weight_specs(self) -> list[WeightSpec]:
        """What ``broadcast`` sends, in that order."""
        return self._model.weight_specs()

    def join_transfer(self, group: TransferGroup) -> None:
        """Rank 0 of the learner is rank 0 of the group; the learner's other ranks take no part in it."""
        self._leave_transfer()
        if self._rank == 0:
            self._group = GroupMember.join(group, 0)
        self._has_group = True

    @distributed.as_guest()
    def broadcast(self) -> None:
        """Raises ``RuntimeError`` without a group, or when an engine's worker is gone: then join another."""
        if not self._has_group:
            raise RuntimeError("broadcast before join_transfer: there is nobody to send weights to")
        failure: RuntimeError | None = None
        for _, weight in self._model.named_weights():
            if self._group is not None and failure is None:
                try:
                    self._group.send(weight)
                except RuntimeError as error:  # the other ranks are gathering the rest: go with them to the end
                    failure = error
        if failure is not None:
            raise failure

    def _leave_transfer(self) -> None:
        group, self._group, self._has_group = self._group, None, False
        if group is not None:
            group.leave()

    def _weights_on_cpu(self) -> dict[str, Tensor]:
        """Copies of their own, on rank 0; the others only help to gather."""
        weights = self._model.named_weights()
        if self._rank == 0:
            return {name: weight.to("cpu", copy=True).contiguous() for name, weight in weights}
        for _ in weights:
            pass
        return {}

    # --- checkpoints ---

    @distributed.as_guest()
    def save(self, folder: Path, *, model_folder: Path | None = None) -> Saving:
        """Copy the state now, write it on a thread of rank 0; a checkpoint that is still being written is waited for.

        Whether that one succeeded is told by its own ``Saving``.
        """
        self._saving.wait_quietly()
        state = gather_state(self._engine, self._model, updates=self.updates)
        weights = self._weights_on_cpu() if model_folder is not None else {}
        card, config_json = self._model.card(), self._model.config_json

        def write() -> None:
            if state is not None:
                write_state(folder, state, card)
                if model_folder is not None:
                    _write_model(model_folder, weights, config_json)

        self._saving = BackgroundSaving(self._writer.submit(write))
        return self._saving

    @distributed.as_guest()
    def load(self, folder: Path) -> None:
        """Go on from ``save``. Learning rates stay this learner's own; nothing is unpickled.

        Raises ``CheckpointMismatch``, and changes nothing, for another model or schema, another optimizer, and files
        that cannot be read.
        """
        state = read_state(folder, self._model.card())
        self.updates = scatter_state(self._engine, self._model, state)

    def close(self) -> None:
        """Finish writing, then free weights and optimizer. Ranks stay joined for the next learner. Twice is fine."""
        self._writer.shutdown()
        if self._engine is not None:
            self._leave_transfer()
            distributed.stop_engine(self._engine)
            self._engine = None
            del self._model, self._reference, self._stepper
            gc.collect()  # engine and hooks point at each other


class BackgroundSaving:
    """A ``Saving``: something that a thread writes; nothing at all without one."""

    def __init__(self, writing: "Future[None] | None" = None) -> None:
        self._writing = writing

    def wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def wait_quietly(self) -> None:
        """Until it is over, whatever came of it."""
        if self._writing is not None:
            self._writing.exception()


def _settings(stage: TrainedStage, resources: LearnerResources, device: torch.device) -> ModelSettings:
    return ModelSettings(
        precision=resources.precision,
        device=str(device),
        activation_checkpointing=resources.activation_checkpointing,
        lora=stage.lora,
        logits_chunk_tokens=resources.logits_chunk_tokens,
    )


def _frozen(folder: Path, settings: ModelSettings) -> PolicyModel:
    """The reference model: the folder's own weights, without adapters, never trained."""
    model = PolicyModel(folder, replace(settings, lora=None, activation_checkpointing=False))
    model.requires_grad_(False)
    return model


def _write_model(folder: Path, weights: dict[str, Tensor], config_json: bytes) -> None:
    with safetensors_errors_as_os_errors(folder):
        write_model(folder, weights, config_json)


def _all_trained(sample: Sample) -> Sample:
    everything = [False, *[True] * (len(sample.ids) - 1)] if sample.ids else []
    return Sample(ids=sample.ids, trained=everything)
