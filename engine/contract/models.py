"""The model of a recipe: one made from nothing, or a folder.

Leaves out making and reading it: ``engine.models``.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, ValidationInfo, field_validator, model_validator

from engine.contract.base import Strict, from_recipe_folder


class TinyModel(Strict):
    """A Qwen3-architecture model made from nothing, with its own byte-level BPE tokenizer."""

    kind: Literal["tiny-qwen3"]
    vocab_size: int = Field(default=1024, ge=300, description="Tokens; 256 of them are bytes.")
    hidden_size: PositiveInt = Field(default=128, description="Width of the residual stream.")
    layers: PositiveInt = Field(default=3, description="Transformer blocks.")
    heads: PositiveInt = Field(default=4, description="Attention heads, as many key/value heads.")
    ffn_size: PositiveInt = Field(default=384, description="Width of the feed-forward layer.")
    context_tokens: int = Field(default=512, ge=64, description="Longest prompt and response together, tokens.")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of heads {self.heads}")
        return self


class FolderModel(Strict):
    """A Hugging Face folder: config.json, model.safetensors, tokenizer.json with the protocol's tags."""

    kind: Literal["folder"]
    path: Path = Field(description="Folder of the model; a relative path is taken from the recipe's folder.")
    context_tokens: int = Field(default=512, ge=64, description="Longest prompt and response together, tokens.")

    @field_validator("path")
    @classmethod
    def _from_recipe(cls, path: Path, info: ValidationInfo) -> Path:
        return from_recipe_folder(path, info)

    @model_validator(mode="after")
    def _exists(self, info: ValidationInfo) -> Self:
        """Not asked of a job that is only looked at (context ``elsewhere``): its run may be another machine's."""
        if (info.context or {}).get("elsewhere"):
            return self
        if missing := missing_files(self.path):
            raise ValueError(f"{self.path} is no model folder: {', '.join(missing)} missing")
        return self


def missing_files(folder: Path) -> list[str]:
    """What a folder lacks to be a model's."""
    return [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]


Model = Annotated[TinyModel | FolderModel, Field(discriminator="kind")]
