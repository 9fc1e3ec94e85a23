"""Memory of a rank and of a rollout engine, by hand for Qwen3-0.6B: N = 596,049,920 parameters."""

from typing import Any

import pytest

from engine.bench.architecture import Architecture
from engine.bench.plan import Item, MemoryPlan, plan_engine, plan_learner
from engine.contract.resources import LearnerResources, RolloutResources
from engine.contract.stages import RlStage

N = 596_049_920


def plan(shape: Architecture, stage: dict[str, Any] | None = None, **resources: Any) -> MemoryPlan:
    rl = RlStage.model_validate({"name": "rl", "kind": "rl", "steps": 1, "max_response_tokens": 8, **(stage or {})})
    return plan_learner(shape, rl, LearnerResources.model_validate({"device": "cuda", **resources}))


def sizes(planned: MemoryPlan) -> dict[str, int]:
    return {item.name: item.size_bytes for item in planned.items}


def test_mixed_precision_adam_on_one_rank_is_the_zero_papers_sixteen_bytes_and_an_accumulator(
    qwen3_06b: Architecture,
) -> None:
    found = sizes(plan(qwen3_06b, precision="bf16"))
    assert found["weights"] == 2 * N
    assert found["masters"] == 4 * N
    assert found["optimizer"] == 8 * N
    assert found["pass's gradients"] == 2 * N
    assert found["gradients"] == 4 * N


def test_fp32_without_zero_is_four_copies(qwen3_06b: Architecture) -> None:
    found = sizes(plan(qwen3_06b, zero_stage=0))
    assert (found["weights"], found["gradients"], found["optimizer"]) == (4 * N, 4 * N, 8 * N)
    assert "masters" not in found


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"),
    [(1, 2 * N, 4 * N, 8 * N // 8), (2, 2 * N, 4 * N // 8, 8 * N // 8), (3, 2 * N // 8, 4 * N // 8, 8 * N // 8)],
)
def test_each_zero_stage_divides_one_thing_more_among_eight_ranks(
    qwen3_06b: Architecture, stage: int, weights: int, gradients: int, optimizer: int
) -> None:
    found = sizes(plan(qwen3_06b, precision="bf16", zero_stage=stage, ranks=8))
    assert (found["weights"], found["gradients"], found["optimizer"]) == (weights, gradients, optimizer)
    assert found["masters"] == 4 * N // 8


def test_offload_moves_masters_moments_and_gradients_into_main_memory(qwen3_06b: Architecture) -> None:
    planned = plan(qwen3_06b, precision="bf16", zero_stage=2, offload_optimizer=True)
    assert {item.name for item in planned.items if item.offloaded} == {"masters", "optimizer", "gradients"}
    assert planned.offloaded_bytes == 4 * N + 8 * N + 4 * N


def test_adapters_have_gradients_and_optimizer_states_and_the_frozen_weights_have_none(qwen3_06b: Architecture) -> None:
    adapters = 10_092_544
    found = sizes(plan(qwen3_06b, {"trained": {"kind": "lora", "rank": 16}}, precision="bf16"))
    assert found["weights"] == 2 * (N + adapters)
    assert found["optimizer"] == 8 * adapters
    assert "head's gradient" not in found


def test_muon_keeps_one_moment_of_the_layers_matrices(qwen3_06b: Architecture) -> None:
    matrices = 28 * (2 * 2048 * 1024 + 2 * 1024 * 1024 + 3 * 3072 * 1024)
    assert sizes(plan(qwen3_06b, {"optimizer": "muon"}))["optimizer"] == 4 * matrices + 8 * (N - matrices)


def test_a_kl_term_loads_a_reference_model(qwen3_06b: Architecture) -> None:
    assert sizes(plan(qwen3_06b, {"kl_beta": 0.1}, precision="bf16"))["reference"] == 2 * N
    assert "reference" not in sizes(plan(qwen3_06b, precision="bf16"))


def test_logits_are_those_of_one_chunk_or_of_a_shorter_row(qwen3_06b: Architecture) -> None:
    assert sizes(plan(qwen3_06b, logits_chunk_tokens=1000))["logits"] == 1000 * 151_936 * 16
    assert sizes(plan(qwen3_06b, micro_batch_tokens=500))["logits"] == 500 * 151_936 * 16
    assert sizes(plan(qwen3_06b, {"entropy_coef": 0.1}, logits_chunk_tokens=1000))["logits"] == 1000 * 151_936 * 24


def test_activations_of_a_place_are_counted_tensor_by_tensor(qwen3_06b: Architecture) -> None:
    hidden, queries, values, ffn = 1024, 2048, 1024, 3072
    norms = 2 * hidden * (4 + 2 + 2)  # input in fp32, normalised, output
    heads = (queries + values) * (4 + 2)  # the output is turned by its position and not kept
    attention = (queries + 2 * values + queries) * 2 + 4 * 16  # q, k, v, output; a sum for each head in fp32
    block = norms + heads + attention + 4 * ffn * 2  # gate, its SiLU, up, their product
    last_norm, passing = hidden * 8, ffn * 2  # what passes is a gradient on its way through the feed-forward layer
    found = sizes(plan(qwen3_06b, precision="bf16", micro_batch_tokens=8192))
    assert found["activations"] == 8192 * (28 * block + last_norm + passing)
    recomputed = sizes(plan(qwen3_06b, precision="bf16", micro_batch_tokens=8192, activation_checkpointing=True))
    assert recomputed["activations"] == 8192 * (28 * hidden * 2 + last_norm)
    head = 2 * 151_936 * hidden
    assert recomputed["recomputed layer"] == 8192 * (28 * hidden * 2 + block + passing) + head


def test_the_peak_is_what_is_always_there_and_the_largest_phase_on_the_device() -> None:
    items = (
        Item("weights", 10, ""),
        Item("masters", 1000, "", offloaded=True),
        Item("activations", 7, "", "forward"),
        Item("logits", 2, "", "forward"),
        Item("temporaries", 8, "", "step"),
    )
    planned = MemoryPlan("some process", items)
    assert (planned.peak_phase, planned.peak_bytes, planned.offloaded_bytes) == ("forward", 19, 1000)


def test_an_engines_cache_holds_keys_and_values_of_every_layer(qwen3_06b: Architecture) -> None:
    planned = plan_engine(qwen3_06b, RolloutResources(precision="bf16", kv_cache_mb=1024))
    tokens = 2**30 // (2 * 28 * 1024 * 2)
    assert sizes(planned) == {"weights": 2 * N, "KV cache": 2**30}
    assert f"room for {tokens:,} tokens" in planned.items[1].why
