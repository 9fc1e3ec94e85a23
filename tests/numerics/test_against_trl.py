"""Our loss and TRL's (1.16.0) on one frozen batch, in float32: the same number and the same gradient of every weight.

``trl_frozen.json`` holds weights, tokens, rewards and what TRL's ``GRPOTrainer`` computed (``python -m
benchmarks.trl_peer`` writes it). TRL divides rewards by std + 1e-4 with N - 1 in the std, so advantages are taken
that way here. It pads and masks; ours are packed, scored and normalised by the learner's own code.
"""

import base64
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from engine.learner.base import Sample
from engine.learner.packing import pack_batch, trained_tokens
from engine.learner.policy_model import PolicyModel
from engine.objective.advantage import group_advantages
from engine.objective.base import Tokens
from engine.objective.cispo import Cispo
from engine.objective.grpo import Grpo
from engine.objective.metrics import metrics_of
from engine.objective.normalisation import token_mean

FROZEN: dict[str, Any] = json.loads(Path(__file__).with_name("trl_frozen.json").read_text("utf-8"))
VARIANTS: dict[str, dict[str, Any]] = FROZEN["variants"]
OBJECTIVES = {
    "token_mean": Grpo(),
    "dr_grpo": Grpo(),
    "kl": Grpo(kl_beta=VARIANTS["kl"]["options"]["beta"], kl_estimator="k3"),
    "entropy": Grpo(entropy_coef=VARIANTS["entropy"]["options"]["entropy_coef"]),
    "cispo": Cispo(clip_low=1.0, clip_high=VARIANTS["cispo"]["options"]["epsilon_high"] - 1),
}
CLOSE: dict[str, Any] = {"rel": 1e-4, "abs": 1e-7}
PASS_TOKENS = 40
"""The batch is cut into several passes, as TRL's is not."""


def array(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    """TRL's model at the moment of its loss, opened as the learner opens one."""
    folder = tmp_path_factory.mktemp("policy")
    causal = Qwen3ForCausalLM(Qwen3Config(**FROZEN["config"]))
    with torch.no_grad():
        for name, weight in causal.named_parameters():
            weight.copy_(array(FROZEN["weights"][name]).view_as(weight))
    causal.save_pretrained(folder)
    return PolicyModel(folder)


def advantages(variant: str) -> list[float]:
    groups = torch.tensor(FROZEN["rewards"]).split(FROZEN["group_size"])
    norm: Literal["std", "none"] = "none" if variant == "dr_grpo" else "std"
    return torch.cat([group_advantages(each, norm=norm, ddof=1, eps=1e-4) for each in groups]).tolist()


def samples(variant: str) -> list[Sample]:
    rows = zip(FROZEN["prompt_ids"], FROZEN["completion_ids"], FROZEN["sampled"], FROZEN["old_logprobs"], strict=True)
    references = VARIANTS[variant]["reference_logprobs"] or [[] for _ in FROZEN["rewards"]]
    return [
        Sample(
            ids=prompt + completion,
            trained=[False] * len(prompt) + list(map(bool, sampled)),
            old_logprobs=[0.0] * len(prompt) + old,
            reference_logprobs=[0.0] * len(prompt) + reference if reference else (),
            advantage=advantage,
        )
        for (prompt, completion, sampled, old), reference, advantage in zip(
            rows, references, advantages(variant), strict=True
        )
    ]


def update(model: PolicyModel, variant: str) -> tuple[float, dict[str, float]]:
    """Loss and metrics; gradients are in the weights' ``.grad``."""
    batch = samples(variant)
    tokens = trained_tokens(batch)
    constant = len(batch) * FROZEN["max_completion_length"]
    model.zero_grad()
    loss, passes = 0.0, []
    for pack in pack_batch(batch, PASS_TOKENS):
        scores = model(pack, temperature=1.0, entropy_gradient=True)
        terms = OBJECTIVES[variant](
            Tokens(
                logp_T=scores.logp_T,
                advantage_T=pack.advantage_T,
                old_T=pack.old_T,
                reference_T=pack.reference_T,
                entropy_T=scores.entropy_T,
            )
        )
        share = token_mean(terms.sum, constant if variant == "dr_grpo" else tokens)
        share.backward()
        loss += share.item()
        passes.append(terms)
    assert len(passes) > 2
    return loss, metrics_of({name: sum(each.sums[name] for each in passes) for name in passes[0].sums}, {}, tokens)


@pytest.mark.parametrize("variant", VARIANTS)
def test_advantages_are_those_of_trl(variant: str) -> None:
    assert advantages(variant) == pytest.approx(VARIANTS[variant]["advantages"], **CLOSE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_is_that_of_trl(model: PolicyModel, variant: str) -> None:
    loss, _ = update(model, variant)
    assert loss == pytest.approx(VARIANTS[variant]["loss"], **CLOSE)


def test_so_many_tokens_are_clipped_and_so_uncertain(model: PolicyModel) -> None:
    _, metrics = update(model, "token_mean")
    frozen = VARIANTS["token_mean"]["metrics"]
    assert metrics["clip_frac"] == pytest.approx(frozen["clip_ratio/region_mean"], **CLOSE)
    assert metrics["entropy"] == pytest.approx(frozen["entropy"], **CLOSE)
    assert metrics["clip_frac"] > 0.2


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gradient_of_every_weight_is_that_of_trl(model: PolicyModel, variant: str) -> None:
    """Distance over TRL's norm, for each weight by itself."""
    update(model, variant)
    frozen = VARIANTS[variant]["gradients"]
    found = {name: weight.grad for name, weight in model.causal.named_parameters()}
    assert found.keys() == frozen.keys()
    for name, gradient in found.items():
        assert gradient is not None
        expected = array(frozen[name]).view_as(gradient)
        assert torch.dist(gradient, expected) <= 1e-4 * expected.norm(), name
