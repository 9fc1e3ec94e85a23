"""What a learner is compared with: the loop that one writes first around a Hugging Face model.

Samples stand in rows padded on the right; transformers makes the mask and chooses the attention. The loss is GRPO's
before its first clip, the optimizer torch's AdamW with fp32 weights (with bf16 through autocast, as Trainer does it).
Leaves out metrics, which the learner has besides.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.learner.base import Sample
from engine.learner.head import score_targets


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """``order`` of samples before they are cut into micro-batches of at most ``max_tokens`` padded places.

    ``scored``: the output layer and softmax over every place, as ``model(...).logits`` gives them, or only where a
    token is trained, as in the learner.
    """

    max_tokens: int
    learning_rate: float
    max_grad_norm: float
    order: Literal["random", "sorted"]
    scored: Literal["every", "trained"]
    bf16: bool = False
    device: str = "cpu"


class PaddedLoop:
    """A model of its own and its optimizer; ``update`` is one step on a whole batch."""

    def __init__(self, folder: Path, settings: LoopSettings, *, seed: int = 0) -> None:
        self._settings = settings
        self._rng = random.Random(seed)
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).to(settings.device)
        self._model.eval()
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def update(self, batch: Sequence[Sample]) -> None:
        tokens = sum(sum(sample.trained) for sample in batch)
        for micro_batch in cut_padded(self._ordered(batch), self._settings.max_tokens):
            torch.autograd.backward(self._loss_sum(micro_batch) / tokens)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _ordered(self, batch: Sequence[Sample]) -> list[Sample]:
        if self._settings.order == "sorted":
            return sorted(batch, key=lambda sample: -len(sample.ids))
        return self._rng.sample(batch, len(batch))

    def _loss_sum(self, micro_batch: Sequence[Sample]) -> Tensor:
        device = self._settings.device
        ids_BL, mask_BL, trained_BL = (each.to(device) for each in padded(micro_batch))
        advantage_B = torch.tensor([sample.advantage for sample in micro_batch], device=device)
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=self._settings.bf16):
            logp_T = self._logp(ids_BL, mask_BL, trained_BL[:, 1:])
        advantage_T = advantage_B.repeat_interleave(trained_BL[:, 1:].sum(1))
        ratio_T = (logp_T - logp_T.detach()).exp()
        return -(ratio_T * advantage_T).sum()

    def _logp(self, ids_BL: Tensor, mask_BL: Tensor, predicted_BL: Tensor) -> Tensor:
        target_T = ids_BL[:, 1:][predicted_BL]
        inputs = {"input_ids": ids_BL[:, :-1], "attention_mask": mask_BL[:, :-1], "use_cache": False}
        if self._settings.scored == "trained":
            hidden_TH = self._model.base_model(**inputs).last_hidden_state[predicted_BL]
            head = self._model.get_output_embeddings()
            return score_targets(hidden_TH, target_T, head, temperature=1.0, chunk_tokens=4096).logp_T
        logp_BLV = torch.log_softmax(self._model(**inputs).logits.float(), dim=-1)
        return logp_BLV[predicted_BL].gather(-1, target_T[:, None]).squeeze(-1)


def cut_padded(samples: Sequence[Sample], max_tokens: int) -> Iterator[list[Sample]]:
    """Samples in their order, as many at a time as fit ``max_tokens`` places with their padding, one at least."""
    cut: list[Sample] = []
    for sample in samples:
        width = max(len(each.ids) for each in [*cut, sample])
        if cut and (len(cut) + 1) * width > max_tokens:
            yield cut
            cut = []
        cut.append(sample)
    if cut:
        yield cut


def padded(samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask of what is no padding, mask of what is trained: [B, L]."""
    width = max(len(sample.ids) for sample in samples)
    shape = (len(samples), width)
    ids, mask, trained = (torch.zeros(shape, dtype=dtype) for dtype in (torch.long, torch.bool, torch.bool))
    for row, sample in enumerate(samples):
        length = len(sample.ids)
        ids[row, :length] = torch.tensor(sample.ids)
        mask[row, :length] = True
        trained[row, :length] = torch.tensor(sample.trained)
    return ids, mask, trained
