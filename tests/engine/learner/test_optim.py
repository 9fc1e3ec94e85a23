"""What DeepSpeed is told: the ZeRO stage that is really run, and settings that must not get lost on the way."""

import pytest

from engine.learner.optim import Optim
from tests.engine.learner.support import resources, rl_stage

TRAINED = 1000


def optim(optimizer: str = "adamw", **on: object) -> Optim:
    return Optim.of(rl_stage(optimizer=optimizer, weight_decay=0.1, max_grad_norm=0.5), resources(**on))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_adamw_in_fp32_runs_at_the_stage_that_was_asked_for(stage: int) -> None:
    assert optim(zero_stage=stage).deepspeed(TRAINED)["zero_optimization"]["stage"] == stage


@pytest.mark.parametrize(("trained", "places"), [(TRAINED, TRAINED), (14_000_000_000, 500_000_000)])
def test_gradients_are_reduced_in_a_buffer_no_larger_than_the_model(trained: int, places: int) -> None:
    assert optim().deepspeed(trained)["zero_optimization"]["reduce_bucket_size"] == places


@pytest.mark.parametrize(("asked", "run"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_bf16_begins_at_1_where_gradients_are_added_up_in_fp32(asked: int, run: int) -> None:
    config = optim(precision="bf16", zero_stage=asked).deepspeed(TRAINED)
    assert config["zero_optimization"]["stage"] == run
    assert config["data_types"]["grad_accum_dtype"] == config["communication_data_type"] == "fp32"


@pytest.mark.parametrize(("precision", "run"), [("fp32", 0), ("bf16", 1)])
def test_muon_has_a_stage_of_its_own_and_leaves_offload_aside(precision: str, run: int) -> None:
    made = optim("muon", precision=precision, zero_stage=3, offload_optimizer=True)
    assert made.deepspeed(TRAINED)["zero_optimization"]["stage"] == run
    assert "offload_optimizer" not in made.deepspeed(TRAINED)["zero_optimization"]
    assert made.rates(0.5).keys() == {"lr", "muon_lr"}


def test_offload_takes_deepspeeds_adam_to_main_memory() -> None:
    config = optim(zero_stage=2, offload_optimizer=True).deepspeed(TRAINED)
    assert config["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}
    assert config["optimizer"]["params"]["torch_adam"] is False


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_decay_moments_and_clipping_are_the_stages(optimizer: str) -> None:
    config = optim(optimizer).deepspeed(TRAINED)
    assert config["gradient_clipping"] == 0.5
    assert config["optimizer"]["params"]["weight_decay"] == 0.1
    assert config["optimizer"]["params"]["betas"] == [0.9, 0.95]
