"""Shapes of a decoder-only transformer, from its ``config.json`` or a recipe: parameters and floating-point operations.

Knows the families that the learner trains, Qwen3 and Llama. Reads no weights and imports no torch.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.contract.models import Model, TinyModel
from engine.contract.stages import Lora

QK_NORM = {"qwen3": True, "llama": False}
"""The families, and whether their attention normalises each head's queries and keys."""


class UnknownModel(Exception):
    """A ``config.json`` that cannot be read or whose parameters we cannot count."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a model, as its ``config.json`` names them; ``tied`` heads share the embedding's matrix."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocabulary: int
    tied: bool = True
    qk_norm: bool = True
    attention_bias: bool = False
    ffn_bias: bool = False

    @classmethod
    def of(cls, model: Model) -> "Architecture":
        """Raises ``UnknownModel``."""
        if isinstance(model, TinyModel):
            size = model.hidden_size // model.heads
            return cls(
                model.hidden_size, model.layers, model.heads, model.heads, size, model.ffn_size, model.vocab_size
            )
        return cls.read(model.path / "config.json")

    @classmethod
    def read(cls, path: Path) -> "Architecture":
        """From a Hugging Face ``config.json``. Raises ``UnknownModel`` that names the file and the field."""
        try:
            config: dict[str, Any] = json.loads(path.read_bytes())
        except OSError as error:
            raise UnknownModel(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UnknownModel(f"{path}: is not JSON: {error}") from error
        family = config.get("model_type")
        if family not in QK_NORM:
            raise UnknownModel(f"{path}: model_type is {family!r}, expected one of {', '.join(QK_NORM)}")
        heads = _size(config, "num_attention_heads", path)
        hidden = _size(config, "hidden_size", path)
        return cls(
            hidden=hidden,
            layers=_size(config, "num_hidden_layers", path),
            heads=heads,
            kv_heads=_size({"num_key_value_heads": heads} | config, "num_key_value_heads", path),
            head_size=config.get("head_dim") or hidden // heads,
            ffn=_size(config, "intermediate_size", path),
            vocabulary=_size(config, "vocab_size", path),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=QK_NORM[family],
            attention_bias=bool(config.get("attention_bias", False)),
            ffn_bias=bool(config.get("mlp_bias", False)),
        )

    # --- parameters ---

    @property
    def query_width(self) -> int:
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size

    @property
    def layer_linears(self) -> list[tuple[int, int]]:
        """(out, in) of the linear layers of one block: q, k, v, o, gate, up, down."""
        queries, values, hidden, ffn = self.query_width, self.kv_width, self.hidden, self.ffn
        attention = [(queries, hidden), (values, hidden), (values, hidden), (hidden, queries)]
        return [*attention, (ffn, hidden), (ffn, hidden), (hidden, ffn)]

    @property
    def layer_matrices(self) -> int:
        """Parameters of one block's linear layers, without biases."""
        return sum(out * into for out, into in self.layer_linears)

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All of the model, a tied matrix once."""
        attention, ffn = self.layer_linears[:4], self.layer_linears[4:]
        biases = self.attention_bias * sum(out for out, _ in attention) + self.ffn_bias * sum(out for out, _ in ffn)
        norms = 2 * self.hidden + self.qk_norm * 2 * self.head_size
        blocks = self.layers * (self.layer_matrices + biases + norms)
        return blocks + self.hidden + self.embedding * (1 if self.tied else 2)

    def trained_parameters(self, lora: Lora | None) -> int:
        """All, or the adapters' A [rank, in] and B [out, rank] of every linear layer of the blocks."""
        if lora is None:
            return self.parameters
        return self.layers * sum(lora.rank * (out + into) for out, into in self.layer_linears)

    # --- operations ---

    def training_flops(self, lengths: Iterable[int], trained_tokens: int) -> float:
        """Floating-point operations that one forward and backward pass need, recomputation left out.

        6 N P + 6 V H T + 6 L A sum(l^2): N weights of the blocks' matrices for each of P tokens; the output layer
        (V x H) for the T trained tokens only; attention of width A in L layers over samples of length l, causal, so
        half of the 12 L A l^2 of the full square. 6 is 2 for the forward pass (a multiplication and an addition) and
        4 for the backward pass (Kaplan et al., arXiv 2001.08361, section 2.1; "model FLOPs" as in PaLM, arXiv
        2204.02311, appendix B). Looking up embeddings costs nothing.
        """
        lengths = list(lengths)
        blocks = 6 * self.layers * self.layer_matrices * sum(lengths)
        head = 6 * self.embedding * trained_tokens
        attention = 6 * self.layers * self.query_width * sum(length**2 for length in lengths)
        return float(blocks + head + attention)


def _size(config: dict[str, Any], name: str, path: Path) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UnknownModel(f"{path}: {name} is {value!r}, expected a number of 1 or more")
    return value
