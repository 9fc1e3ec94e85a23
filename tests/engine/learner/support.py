"""A tiny random Qwen3 folder, samples, and plain-loop references that share no code with the learner."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from engine.contract.resources import LearnerResources
from engine.contract.stages import RlStage, SftStage
from engine.learner.base import Sample
from engine.learner.deepspeed_learner import DeepSpeedLearner
from engine.learner.optim import MOMENTUM
from engine.learner.state import gather_state

ROOT = Path(__file__).resolve().parents[3]
VOCABULARY = 64


def make_folder(folder: Path, *, hidden_size: int = 32, seed: int = 0) -> Path:
    folder.mkdir()
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=hidden_size // 4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.3,  # large: distributions then differ from place to place
        architectures=["Qwen3ForCausalLM"],
    )
    torch.manual_seed(seed)
    weights = {k: v.clone().contiguous() for k, v in Qwen3ForCausalLM(config).state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    return folder


def sft_stage(**changes: object) -> SftStage:
    return SftStage.model_validate({"name": "sft", "kind": "sft", "steps": 10, **changes})


def rl_stage(**changes: object) -> RlStage:
    return RlStage.model_validate({"name": "rl", "kind": "rl", "steps": 10, "max_response_tokens": 32, **changes})


def resources(micro_batch_tokens: int = 8192, **changes: object) -> LearnerResources:
    return LearnerResources.model_validate({"device": "cpu", "micro_batch_tokens": micro_batch_tokens, **changes})


@dataclass
class Open:
    """Opens learners and closes them when the test ends; ``on`` are settings of ``LearnerResources``."""

    folder: Path
    opened: list[DeepSpeedLearner]

    def sft(self, tokens: int = 8192, on: Mapping[str, object] = {}, **changes: object) -> DeepSpeedLearner:
        return self._kept(DeepSpeedLearner.for_sft(self.folder, sft_stage(**changes), resources(tokens, **on)))

    def rl(
        self,
        tokens: int = 8192,
        on: Mapping[str, object] = {},
        *,
        sampler_weight: bool = False,
        reference: Path | None = None,
        **changes: object,
    ) -> DeepSpeedLearner:
        stage = rl_stage(**changes)
        learner = DeepSpeedLearner.for_rl(
            self.folder, stage, resources(tokens, **on), sampler_weight=sampler_weight, reference=reference
        )
        return self._kept(learner)

    def _kept(self, learner: DeepSpeedLearner) -> DeepSpeedLearner:
        self.opened.append(learner)
        return learner


def samples(count: int, *, seed: int = 0, rl: bool = False, old: bool = False) -> list[Sample]:
    """Prompt, sampled text, a piece of tool text, sampled text: lengths 12 to 30."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        length = rng.randint(12, 30)
        tool = range(length // 2, length // 2 + 3)
        trained = [at > 3 and at not in tool for at in range(length)]
        logp = [rng.uniform(-5, -1) if on else 0.0 for on in trained]
        made.append(
            Sample(
                ids=[rng.randrange(VOCABULARY) for _ in range(length)],
                trained=trained,
                logprobs=[value + rng.uniform(-0.2, 0.2) for value in logp] if rl else (),
                old_logprobs=logp if old else (),
                advantage=rng.choice([-1.2, -0.4, 0.6, 1.5]) if rl else 0.0,
            )
        )
    return made


def plain_model(folder: Path, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def plain_logp(model: Qwen3ForCausalLM, sample: Sample, temperature: float = 1.0) -> list[torch.Tensor]:
    """One sample, no padding, one token after the other; place 0 has no predecessor."""
    logits = model(input_ids=torch.tensor([list(sample.ids)])).logits[0].float()
    rows = [torch.zeros(())]
    for at in range(1, len(sample.ids)):
        rows.append(torch.log_softmax(logits[at - 1] / temperature, dim=-1)[sample.ids[at]])
    return rows


def plain_sft_loss(model: Qwen3ForCausalLM, batch: Sequence[Sample]) -> torch.Tensor:
    total, tokens = torch.zeros(()), 0
    for sample in batch:
        for value, on in zip(plain_logp(model, sample), sample.trained, strict=True):
            if on:
                total, tokens = total - value, tokens + 1
    return total / tokens


def plain_rl_loss(
    model: Qwen3ForCausalLM, batch: Sequence[Sample], temperature: float = 1.0, low: float = 0.2, high: float = 0.28
) -> torch.Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A) over trained tokens, divided by their number."""
    total, tokens = torch.zeros(()), 0
    for sample in batch:
        for at, value in enumerate(plain_logp(model, sample, temperature)):
            if sample.trained[at]:
                old = sample.old_logprobs[at] if sample.old_logprobs else value.item()
                ratio = (value - old).exp()
                if sample.advantage > 0 and ratio.item() > 1 + high:
                    ratio = torch.tensor(1 + high)
                if sample.advantage < 0 and ratio.item() < 1 - low:
                    ratio = torch.tensor(1 - low)
                total, tokens = total - ratio * sample.advantage, tokens + 1
    return total / tokens


def exported(learner: DeepSpeedLearner, folder: Path) -> str:
    """Digest of the weights, to the bit."""
    learner.export(folder)
    return digest(folder)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def weights_of(learner: DeepSpeedLearner) -> dict[str, torch.Tensor]:
    """By name; the head is the embedding."""
    weights = {name: weight.clone() for name, weight in learner._model.named_weights()}
    assert torch.equal(weights.pop("lm_head.weight"), weights["model.embed_tokens.weight"])
    return weights


def state_of(learner: DeepSpeedLearner) -> dict[str, torch.Tensor]:
    """Masters and optimizer tensors by name; what a checkpoint holds. A collective; empty on ranks other than 0."""
    state = gather_state(learner._engine, learner._model, updates=learner.updates)
    return {} if state is None else state.tensors


def first_gradients(learner: DeepSpeedLearner) -> dict[str, torch.Tensor]:
    """What the optimizer was given in its first step, whatever held it: a first moment m is then (1 - beta) g."""
    found = {}
    for name, tensor in state_of(learner).items():
        for moment, share in (("adam/exp_avg/", 1 - learner.optim.betas[0]), ("muon/momentum_buffer/", 1 - MOMENTUM)):
            if name.startswith(moment):
                found[name.removeprefix(moment + "causal.")] = tensor / share
    return found


def relative_error(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Largest over weights of |ours - theirs| / |theirs| (2-norms)."""
    assert ours.keys() == theirs.keys()
    return max(((ours[n] - theirs[n]).norm() / theirs[n].norm().clamp(min=1e-12)).item() for n in theirs)
