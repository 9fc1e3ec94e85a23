"""The smallest valid recipe, as a person would write it."""

from typing import Any

import pytest


@pytest.fixture
def recipe() -> dict[str, Any]:
    return {
        "name": "laptop",
        "model": {"kind": "tiny-qwen3"},
        "stages": [
            {"kind": "sft", "name": "sft", "steps": 2},
            {"kind": "rl", "name": "rl-1", "steps": 3, "max_response_tokens": 160},
            {"kind": "eval", "name": "eval", "max_response_tokens": 160},
        ],
    }
