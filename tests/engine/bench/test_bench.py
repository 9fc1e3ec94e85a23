"""The learner's benchmark on a CPU, and the plan against what tensors really take."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.bench.architecture import Architecture
from engine.bench.batches import Lengths, make_batch
from engine.bench.learner import Scale, bench_learner, bench_stage
from engine.bench.learner_table import print_bench
from engine.bench.live_memory import LiveStorages
from engine.bench.padded_loop import LoopSettings, PaddedLoop
from engine.bench.plan import plan_learner
from engine.bench.random_model import make_random_model
from engine.contract.resources import LearnerResources
from engine.learner.deepspeed_learner import DeepSpeedLearner

pytestmark = pytest.mark.e2e

SHAPE = Architecture(hidden=64, layers=3, heads=4, kv_heads=2, head_size=16, ffn=192, vocabulary=512)


def test_a_bench_names_its_settings_and_judges_every_aim(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = Scale(
        shape=SHAPE,
        lengths=Lengths(samples=4, shortest=20, tail=20, longest=80),
        micro_batch_tokens=128,
        precision="fp32",
        zero_stage=0,
        rounds=1,
        matrix=64,
    )
    found = bench_learner("cpu", tiny)
    assert found["ran"]
    assert found["settings"]["parameters"] == SHAPE.parameters
    assert found["batch"]["samples"] == 4
    assert min(found["packed"]["tokens_per_s"], found["padded"]["tokens_per_s"], found["matrix_flops_per_s"]) > 0
    assert [aim["name"].split()[0] for aim in found["aims"]] == ["model", "padded", "planned"]
    print_bench(found)
    said = capsys.readouterr().out
    assert "tokens/s" in said
    assert said.count("reached") == 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_model(tmp_path_factory.mktemp("model"), SHAPE, context=512)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "fp32", "zero_stage": 0},
        {"precision": "fp32", "zero_stage": 0, "activation_checkpointing": True},
        {"precision": "bf16", "zero_stage": 1},
        {"precision": "bf16", "zero_stage": 1, "activation_checkpointing": True},
    ],
    ids=lambda settings: " ".join(str(value) for value in settings.values()),
)
def test_a_plan_is_near_what_tensors_take(model: Path, settings: Mapping[str, Any]) -> None:
    """States between updates to the byte but for a few counters; the peak of an update within a tenth."""
    resources = LearnerResources.model_validate({"device": "cpu", "micro_batch_tokens": 1024, **settings})
    batch = make_batch(Lengths(samples=16, shortest=257, tail=1, longest=257), SHAPE.vocabulary)  # 4 fill a row
    trained = 4 * sum(batch[0].trained)
    plan = plan_learner(SHAPE, bench_stage(), resources, trained_places=trained)
    learner = DeepSpeedLearner.for_rl(model, bench_stage(), resources)
    try:
        with LiveStorages() as storages:
            learner.rl_update(batch, lr_scale=1.0)
            between = storages.bytes
            storages.peak_bytes = between
            learner.rl_update(batch, lr_scale=1.0)
            peak = storages.peak_bytes
    finally:
        learner.close()
    freed = ("gradients",) if settings["precision"] == "fp32" else ("pass's gradients",)  # when the step is done
    states = sum(item.size_bytes for item in plan.items if item.phase == "always" and item.name not in freed)
    assert states <= between <= states + 4096
    assert plan.peak_bytes == pytest.approx(peak, rel=0.1)


def test_the_padded_loop_moves_weights_as_the_learner_does(model: Path) -> None:
    """Both are one AdamW step along the same gradient: two updates end in the same weights."""
    batch = make_batch(Lengths(samples=4, shortest=20, tail=20, longest=80), SHAPE.vocabulary)
    stage, resources = bench_stage(), LearnerResources(device="cpu")
    learner = DeepSpeedLearner.for_rl(model, stage, resources)
    loop = PaddedLoop(
        model, LoopSettings(512, stage.learning_rate, stage.max_grad_norm, order="random", scored="every")
    )
    try:
        for _ in range(2):
            learner.rl_update(batch, lr_scale=1.0)
            loop.update(batch)
        ours = dict(learner._model.named_weights())
        for name, weight in loop._model.named_parameters():
            torch.testing.assert_close(ours[name], weight.detach(), rtol=1e-5, atol=1e-6)
    finally:
        learner.close()
