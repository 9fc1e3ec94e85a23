"""The learner on DeepSpeed: SFT with Muon at ZeRO 0, RL with AdamW at ZeRO 1; fp32, one rank.

An update is cut into micro-batches. Each contributes its sum of token losses over the update's trained
tokens, so the gradient is the same for every cut; DeepSpeed scales nothing and takes its step when all are
in. A loss or gradient that is not finite skips the step: weights and optimizer stay as they were and the
metric ``skipped`` says so. Leaves out several ranks, bf16 and chunks over the vocabulary.
"""

import errno
import gc
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from torch import Tensor

from engine.contract.job import LearnerResources, RlStage, SftStage
from engine.learner import distributed
from engine.learner.base import CheckpointMismatch, Sample, UpdateResult
from engine.learner.checkpoint import atomic_folder, check_card, settle, write_card
from engine.learner.optim import RlOptim, SftOptim
from engine.learner.packing import MicroBatch, micro_batches
from engine.learner.policy_model import PolicyModel
from engine.objective.logprob import entropy, token_logp
from engine.objective.policy_loss import policy_loss, token_mean
from engine.sink.disk import SinkFull

TAG = "deepspeed"
"""Folder of DeepSpeed's own files inside a checkpoint."""


@dataclass(slots=True)
class Tally:
    """What an update adds up over its micro-batches; sums are over trained tokens."""

    tokens: int
    loss: float = 0.0
    nll: float = 0.0
    entropy: float = 0.0
    clipped: float = 0.0
    ratio_max: float = 0.0
    gap: float = 0.0
    gap_max: float = 0.0

    def add_gap(self, learner_T: Tensor, sampler_T: Tensor | None) -> None:
        """Learner against sampler. A NaN stays visible: ``max`` of Python would drop it."""
        if sampler_T is not None:
            gap_T = (learner_T - sampler_T).abs()
            largest = gap_T.max().item()
            self.gap += gap_T.sum().item()
            self.gap_max = math.nan if math.isnan(largest) else max(self.gap_max, largest)

    def per_token(self, total: float) -> float:
        return total / self.tokens if self.tokens else 0.0


ROOM = 64 << 20
"""Bytes; a write that fails with less than this left on its disk is told as a full disk."""

LossOf = Callable[[MicroBatch, Tensor, Tally], Tensor]
"""A micro-batch, its logits [T, V] and the update's tally -> its share of the loss, already normalised."""


class DeepSpeedLearner:
    """``Learner`` of one stage. Every call blocks; all of them belong on one thread.

    Several may follow one another in a process, each closed before the next is made.
    """

    def __init__(self, model_folder: Path, optim: SftOptim | RlOptim, resources: LearnerResources) -> None:
        torch.set_num_threads(resources.threads)
        self.optim = optim
        self.updates = 0
        self._micro_batch_tokens = resources.micro_batch_tokens
        self._model = PolicyModel(model_folder)
        self._engine = distributed.start_engine(self._model, optim.deepspeed())
        self._engine.eval()
        self._base_rates = [float(group["lr"]) for group in self._engine.optimizer.param_groups]

    @classmethod
    def for_sft(cls, model_folder: Path, stage: SftStage, resources: LearnerResources) -> "DeepSpeedLearner":
        return cls(model_folder, SftOptim.of(stage), resources)

    @classmethod
    def for_rl(cls, model_folder: Path, stage: RlStage, resources: LearnerResources) -> "DeepSpeedLearner":
        return cls(model_folder, RlOptim.of(stage), resources)

    # --- updates ---

    def sft_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        """One step of next-token cross-entropy.

        Metrics: ``loss`` (what is minimised), ``nll`` (nats per trained token: equal to it without
        ``normaliser``), ``entropy`` (nats per trained token), ``tokens`` (trained), ``grad_norm`` (before
        clipping), ``lr``, ``muon_lr``, ``skipped`` (0 or 1), ``seconds``.
        """
        began = time.perf_counter()
        tally, metrics = self._update(batch, lr_scale, partial(self._cross_entropy, normaliser))
        nll = tally.per_token(tally.nll)
        return UpdateResult({**metrics, "nll": nll, "seconds": time.perf_counter() - began})

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float) -> UpdateResult:
        """One step of the clipped objective.

        Metrics: ``loss``, ``clip_frac`` (tokens whose gradient the clip removed, 0..1), ``ratio_max``,
        ``entropy``, ``logprob_gap_max`` and ``logprob_gap_mean`` (sampler against the learner before the
        step's first update, absolute nats on trained tokens; 0 without sampler log-probabilities),
        ``tokens``, ``grad_norm``, ``lr``, ``skipped``, ``seconds``.
        """
        began = time.perf_counter()
        tally, metrics = self._update(batch, lr_scale, self._clipped_objective)
        specific = {
            "clip_frac": tally.per_token(tally.clipped),
            "ratio_max": tally.ratio_max,
            "logprob_gap_max": tally.gap_max,
            "logprob_gap_mean": tally.per_token(tally.gap),
        }
        return UpdateResult({**metrics, **specific, "seconds": time.perf_counter() - began})

    def _cross_entropy(self, normaliser: float | None, pack: MicroBatch, logits_TV: Tensor, tally: Tally) -> Tensor:
        total = -token_logp(logits_TV, pack.target_T, self.optim.temperature).sum()
        tally.nll += total.item()
        return token_mean(total, tally.tokens) if normaliser is None else total / normaliser

    def _clipped_objective(self, pack: MicroBatch, logits_TV: Tensor, tally: Tally) -> Tensor:
        if not isinstance(self.optim, RlOptim):
            raise TypeError("rl_update on a learner made for SFT")
        logp_T = token_logp(logits_TV, pack.target_T, self.optim.temperature)
        part = policy_loss(
            logp_T,
            pack.old_T,
            pack.advantage_T,
            clip_low=self.optim.clip_low,
            clip_high=self.optim.clip_high,
            logp_sampler_T=pack.sampler_T if self.optim.truncated_weight else None,
        )
        tally.clipped += part.clip_frac.item() * pack.tokens
        tally.ratio_max = max(tally.ratio_max, part.ratio_max.item())
        tally.add_gap(logp_T.detach() if pack.old_T is None else pack.old_T, pack.sampler_T)
        return token_mean(part.sum, tally.tokens)

    def _update(self, batch: Sequence[Sample], lr_scale: float, loss_of: LossOf) -> tuple[Tally, dict[str, float]]:
        packs = micro_batches(batch, self._micro_batch_tokens)
        tally = Tally(tokens=sum(pack.tokens for pack in packs))
        grad_norm = self._accumulate(packs, tally, loss_of)
        applied = bool(packs) and math.isfinite(grad_norm)
        if applied:
            self._step(lr_scale)
        else:
            self._engine.optimizer.zero_grad()
        return tally, {
            "loss": tally.loss,
            "entropy": tally.per_token(tally.entropy),
            "tokens": float(tally.tokens),
            "grad_norm": grad_norm,
            "skipped": 0.0 if applied else 1.0,
            **self._rates(lr_scale),
        }

    def _accumulate(self, packs: Sequence[MicroBatch], tally: Tally, loss_of: LossOf) -> float:
        """Fill ``.grad`` from all micro-batches. Returns the global 2-norm, NaN once a loss is not finite."""
        for pack in packs:
            logits_TV = self._engine(pack.ids_BL, pack.place_T)
            loss = loss_of(pack, logits_TV, tally)
            tally.loss += loss.item()
            with torch.no_grad():
                tally.entropy += entropy(logits_TV, self.optim.temperature).sum().item()
            if not math.isfinite(tally.loss):
                return math.nan
            self._engine.backward(loss)
        gradients = [weight.grad for weight in self._model.parameters() if weight.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _step(self, lr_scale: float) -> None:
        groups = self._engine.optimizer.param_groups
        for group, base in zip(groups, self._base_rates, strict=True):
            group["lr"] = base * lr_scale
        # DeepSpeed marks Muon for torch.compile: 17 s of C++ at the first step for 6 ms less in each.
        with torch.compiler.set_stance("force_eager"):
            self._engine.step()
        self.updates += 1

    def _rates(self, lr_scale: float) -> dict[str, float]:
        rates = {"lr": self.optim.learning_rate * lr_scale}
        if isinstance(self.optim, SftOptim):
            rates["muon_lr"] = self.optim.muon_learning_rate * lr_scale
        return rates

    # --- reading ---

    @torch.no_grad()
    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Log-probability of every token of every sample, in their order; 0.0 for each first token.

        In fp32 and at the rollout temperature, whatever ``trained`` says.
        """
        rows = [[0.0] * len(sample.ids) for sample in samples]
        for pack in micro_batches([_all_trained(sample) for sample in samples], self._micro_batch_tokens):
            logits_TV = self._model(pack.ids_BL, pack.place_T)
            logp_T = token_logp(logits_TV, pack.target_T, self.optim.temperature)
            at = [1] * len(samples)  # a sample's tokens stand in their order inside its micro-batch
            for row, value in zip(pack.row_T.tolist(), logp_T.tolist(), strict=True):
                rows[row][at[row]] = value
                at[row] += 1
        return rows

    def export(self, folder: Path) -> None:
        """``config.json`` and ``model.safetensors``, ``lm_head.weight`` included.

        ``OSError`` (disk full) leaves the older files.
        """
        with _write_errors(folder):
            self._model.export(folder)

    # --- checkpoints ---

    def save(self, folder: Path) -> None:
        """Weights, optimizer, number of updates, torch's random state: going on is equal to the bit.

        The folder appears complete or not at all; ``OSError`` (disk full) leaves an older one as it was.
        """
        state = {"updates": self.updates, "rng": torch.get_rng_state()}
        with _write_errors(folder), atomic_folder(folder) as temporary:
            self._engine.save_checkpoint(str(temporary), tag=TAG, client_state=state, save_latest=False)
            write_card(temporary, kind=self.optim.kind, model=self._model.card(), updates=self.updates)

    def load(self, folder: Path) -> None:
        """Go on from ``save``. Learning rates stay this learner's own.

        Only for folders of your own runs: DeepSpeed unpickles them. Raises ``CheckpointMismatch`` for
        another model, both named, another kind of learner, another schema, or files that cannot be read.
        """
        settle(folder)
        check_card(folder, kind=self.optim.kind, model=self._model.card())
        try:
            path, state = self._engine.load_checkpoint(str(folder), tag=TAG)
        except (OSError, RuntimeError, EOFError, KeyError, UnpicklingError) as error:
            raise CheckpointMismatch(f"{folder} is damaged: {error}") from error
        if path is None:
            raise CheckpointMismatch(f"{folder} is damaged: DeepSpeed's files are missing")
        self.updates = int(state["updates"])
        torch.set_rng_state(state["rng"])

    def close(self) -> None:
        """Free weights and optimizer. The process group stays for the next learner. May be called twice."""
        if self._engine is not None:
            self._engine.destroy()
            self._engine = None
            del self._model
            gc.collect()  # engine and hooks point at each other


def _all_trained(sample: Sample) -> Sample:
    everything = [False, *[True] * (len(sample.ids) - 1)] if sample.ids else []
    return replace(sample, trained=everything, logprobs=(), old_logprobs=())


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """torch and safetensors report a write that failed as errors of their own, without the system's number for it."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        place = next(each for each in (folder, *folder.parents) if each.exists())
        if shutil.disk_usage(place).free < ROOM:
            raise SinkFull(place, errno.ENOSPC) from error
        raise OSError(f"{folder}: weights could not be written: {error}") from error
