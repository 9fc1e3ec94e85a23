"""Parameters and operations, counted from a config alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from engine.bench.architecture import Architecture, UnknownModel
from engine.contract.models import TinyModel
from engine.contract.stages import Lora
from tests.engine.bench.conftest import QWEN3_06B


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config, default=str))
    return path


def test_qwen3_06b_has_the_published_number_of_parameters(tmp_path: Path, qwen3_06b: Architecture) -> None:
    found = Architecture.read(written(tmp_path, QWEN3_06B))
    assert found == qwen3_06b
    # Per block: q and o of 2048 x 1024, k and v of 1024 x 1024, three of 3072 x 1024; norms of 2 x 1024 + 2 x 128.
    block = 2 * 2048 * 1024 + 2 * 1024 * 1024 + 3 * 3072 * 1024 + 2 * 1024 + 2 * 128
    assert found.parameters == 28 * block + 1024 + 151_936 * 1024 == 596_049_920


SMALL = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_parameters_are_those_that_transformers_makes(tmp_path: Path, family: str, tied: bool, bias: bool) -> None:
    options = {**SMALL, "tie_word_embeddings": tied, "attention_bias": bias}
    with torch.device("meta"):
        if family == "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**options))
        else:
            model = LlamaForCausalLM(LlamaConfig(**options, mlp_bias=bias))
    found = Architecture.read(written(tmp_path, model.config.to_dict()))
    assert found.parameters == sum(weight.numel() for weight in model.parameters())


def test_a_recipes_tiny_model_has_as_many_heads_for_keys_as_for_queries() -> None:
    found = Architecture.of(TinyModel(kind="tiny-qwen3"))
    assert (found.kv_heads, found.head_size, found.parameters) == (4, 32, 771_136)


def test_adapters_are_two_thin_matrices_beside_every_linear_layer(qwen3_06b: Architecture) -> None:
    sides = 2 * (1024 + 2048) + 2 * (1024 + 1024) + 3 * (1024 + 3072)  # q and o; k and v; gate, up and down
    assert qwen3_06b.trained_parameters(Lora(rank=16)) == 28 * 16 * sides == 10_092_544


def test_a_training_pass_costs_six_operations_a_weight_and_place_and_causal_attention() -> None:
    shape = Architecture(hidden=8, layers=2, heads=2, kv_heads=1, head_size=4, ffn=16, vocabulary=100)
    linears = 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 16 * 8
    blocks, head = 6 * 2 * linears * (3 + 5), 6 * 100 * 8 * 4
    # Scores and their product with the values: each a multiplication and an addition for 8 widths of half of l^2 pairs,
    # once forward and twice backward.
    attention = 2 * (2 * 2 * 8 * (3**2 + 5**2) / 2) * 3
    assert shape.training_flops([3, 5], 4) == blocks + head + attention


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "mamba"}, "model_type is 'mamba', expected one of qwen3, llama"),
        ({"hidden_size": None}, "hidden_size is None, expected a number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected a number of 1 or more"),
    ],
)
def test_a_config_that_cannot_be_counted_names_file_and_field(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    path = written(tmp_path, QWEN3_06B | change)
    with pytest.raises(UnknownModel, match=expected) as caught:
        Architecture.read(path)
    assert str(path) in str(caught.value)


def test_a_config_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(UnknownModel, match="is not JSON"):
        Architecture.read(path)
