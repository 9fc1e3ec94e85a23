"""A learner in plain torch, one token loss after the other: what the exam holds the real ones against.

Made from the formulas and the seam (``engine.learner.base``) alone; shares no code with ``DeepSpeedLearner``. AdamW
whatever the stage's optimizer is, the clipped objective without its extra terms, everything in fp32 on the CPU. Good
for stages' tests too: it learns, in milliseconds and in this process.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

from engine.contract.stages import RlStage, SftStage
from engine.learner.base import CheckpointMismatch, Sample, TransferGroup, UpdateResult, WeightSpec

State = dict[str, Tensor]
Terms = dict[str, Tensor]
"""Of one sample's trained tokens [T]; ``loss`` is what is summed."""


class Writing:
    """A ``Saving``."""

    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()


class TwinLearner:
    def __init__(self, folder: Path, stage: SftStage | RlStage, *, reference: Path | None = None) -> None:
        self.stage = stage
        self.model = _plain(folder)
        self.reference = _plain(reference) if reference else None
        self.temperature = stage.temperature if isinstance(stage, RlStage) else 1.0
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=stage.learning_rate, betas=stage.betas, weight_decay=stage.weight_decay
        )
        self.updates = 0
        self.group: TransferGroup | None = None
        self.broadcasts = 0
        self._config = (folder / "config.json").read_bytes()
        self._writer = ThreadPoolExecutor(max_workers=1)

    # --- updates ---

    def sft_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        return self._update(self._cross_entropy, batch, lr_scale, normaliser)

    def rl_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float | None = None) -> UpdateResult:
        return self._update(self._clipped, batch, lr_scale, normaliser)

    def _update(
        self, terms: Callable[[Sample], Terms], batch: Sequence[Sample], lr_scale: float, normaliser: float | None
    ) -> UpdateResult:
        began = time.perf_counter()
        _check(batch)
        each = [terms(sample) for sample in batch if any(sample.trained)]
        tokens = sum(found["loss"].numel() for found in each)
        total = torch.stack([found["loss"].sum() for found in each]).sum() if each else torch.zeros(())
        loss = total / (normaliser or max(tokens, 1))
        grad_norm = self._step(loss, lr_scale) if each else math.nan
        return UpdateResult(
            {
                "loss": loss.item(),
                **_figures(each),
                "tokens": float(tokens),
                "grad_norm": grad_norm,
                "skipped": float(math.isnan(grad_norm)),
                "lr": self.stage.learning_rate * lr_scale,
                "seconds": time.perf_counter() - began,
            }
        )

    def _step(self, loss: Tensor, lr_scale: float) -> float:
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.stage.max_grad_norm).item()
        if not math.isfinite(norm + loss.item()):
            return math.nan
        for group in self.optimizer.param_groups:
            group["lr"] = self.stage.learning_rate * lr_scale
        self.optimizer.step()
        self.updates += 1
        return norm

    def _cross_entropy(self, sample: Sample) -> Terms:
        logp_T = self._logp(self.model, sample)[_places(sample)]
        return {"loss": -logp_T, "nll": -logp_T}

    def _clipped(self, sample: Sample) -> Terms:
        """-min(r A, clip(r, 1 - low, 1 + high) A); without old log-probabilities r is against the policy itself."""
        assert isinstance(self.stage, RlStage)
        at = _places(sample)
        logp_T = self._logp(self.model, sample)[at]
        old_T = torch.tensor(list(sample.old_logprobs))[at] if len(sample.old_logprobs) else logp_T.detach()
        ratio_T = (logp_T - old_T).exp()
        raw_T = ratio_T * sample.advantage
        bounded_T = ratio_T.clamp(1 - self.stage.clip_low, 1 + self.stage.clip_high) * sample.advantage
        terms = {"loss": -torch.minimum(raw_T, bounded_T), "clip_frac": (bounded_T < raw_T).float(), "ratio": ratio_T}
        if len(sample.logprobs):
            terms["logprob_gap"] = (old_T - torch.tensor(list(sample.logprobs))[at]).abs()
        return terms

    # --- reading ---

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        return self._rows(self.model, samples)

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        if self.reference is None:
            raise RuntimeError("this learner was opened without a reference model")
        return self._rows(self.reference, samples)

    @torch.no_grad()
    def _rows(self, model: Qwen3ForCausalLM, samples: Sequence[Sample]) -> list[list[float]]:
        return [self._logp(model, sample).tolist() for sample in samples]

    def _logp(self, model: Qwen3ForCausalLM, sample: Sample) -> Tensor:
        """Log-probability of every token [L]; nothing predicts the first, whose place is 0."""
        ids_L = torch.tensor(list(sample.ids))
        logp_LV = torch.log_softmax(model(input_ids=ids_L[None]).logits[0, :-1] / self.temperature, dim=-1)
        return torch.cat([torch.zeros(1), logp_LV.gather(1, ids_L[1:, None])[:, 0]])

    # --- weights ---

    def export(self, folder: Path) -> None:
        self._write_model(folder, self._weights())

    def weight_specs(self) -> list[WeightSpec]:
        return [WeightSpec(name, "float32", tuple(weight.shape)) for name, weight in self._weights().items()]

    def join_transfer(self, group: TransferGroup) -> None:
        self.group = group

    def broadcast(self) -> None:
        if self.group is None:
            raise RuntimeError("broadcast before join_transfer")
        self.broadcasts += 1

    def _weights(self) -> State:
        """Of the Hugging Face names, the tied ``lm_head.weight`` too."""
        return {name: weight.detach().clone() for name, weight in self.model.state_dict().items()}

    def _write_model(self, folder: Path, weights: State) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_bytes(self._config)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    # --- checkpoints ---

    def save(self, folder: Path, *, model_folder: Path | None = None) -> Writing:
        weights, moments, rng = self._weights(), self._moments(), {"rng": torch.get_rng_state()}
        numbers = json.dumps({"model": str(self), "updates": self.updates})

        def write() -> None:
            folder.mkdir(parents=True, exist_ok=True)
            save_file({**weights, **moments, **rng}, folder / "twin.safetensors")
            (folder / "twin.json").write_text(numbers)
            if model_folder is not None:
                self._write_model(model_folder, weights)

        return Writing(self._writer.submit(write))

    def load(self, folder: Path) -> None:
        numbers = json.loads((folder / "twin.json").read_text())
        if numbers["model"] != str(self):
            raise CheckpointMismatch(f"{folder} is a checkpoint of {numbers['model']}; this learner holds {self}")
        state = load_file(folder / "twin.safetensors")
        torch.set_rng_state(state["rng"])
        self.model.load_state_dict({name: state[name] for name in self.model.state_dict()})
        for name, weight in self.model.named_parameters():
            keys = ("step", "exp_avg", "exp_avg_sq") if f"{name}/step" in state else ()
            self.optimizer.state[weight] = {key: state[f"{name}/{key}"].clone() for key in keys}
        self.updates = numbers["updates"]

    def _moments(self) -> State:
        return {
            f"{name}/{key}": value.clone()
            for name, weight in self.model.named_parameters()
            for key, value in self.optimizer.state[weight].items()
        }

    def close(self) -> None:
        self._writer.shutdown()

    def __str__(self) -> str:
        return f"a twin of hidden size {self.model.config.hidden_size}"


def _plain(folder: Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def _places(sample: Sample) -> Tensor:
    return torch.tensor([at for at, on in enumerate(sample.trained) if on])


def _check(batch: Sequence[Sample]) -> None:
    for row, sample in enumerate(batch):
        for name in ("trained", "logprobs", "old_logprobs", "reference_logprobs"):
            length = len(getattr(sample, name))
            if length != len(sample.ids) and (length or name == "trained"):
                raise ValueError(f"sample {row}: {name} has {length} places, ids has {len(sample.ids)}")


def _figures(each: Sequence[Terms]) -> dict[str, float]:
    """Means over all trained tokens; of the ratio and of the gap to the sampler also the largest."""
    if not each:
        return {}
    whole = {name: torch.cat([terms[name] for terms in each]).detach() for name in each[0] if name != "loss"}
    spread = {"ratio", "logprob_gap"} & whole.keys()
    means = {f"{name}_mean" if name in spread else name: value.mean().item() for name, value in whole.items()}
    return means | {f"{name}_max": whole[name].max().item() for name in spread}
