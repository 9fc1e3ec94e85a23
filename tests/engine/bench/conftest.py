"""Shapes whose numbers are known by heart."""

import pytest

from engine.bench.architecture import Architecture

QWEN3_06B = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151_936,
    "tie_word_embeddings": True,
}
"""The published ``config.json`` of Qwen3-0.6B, as far as parameters depend on it."""


@pytest.fixture
def qwen3_06b() -> Architecture:
    return Architecture(
        hidden=1024, layers=28, heads=16, kv_heads=8, head_size=128, ffn=3072, vocabulary=151_936, tied=True
    )
