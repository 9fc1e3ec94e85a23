"""Where a stage's problems come from. Leaves out making and reading them: ``engine.data``."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, ValidationInfo, field_validator

from engine.contract.base import Strict, from_recipe_folder

Operations = Annotated[
    dict[Annotated[int, Field(ge=1, le=6)], PositiveFloat],
    Field(min_length=1, description="Number of chained operations -> relative weight (arithmetic problems)."),
]


class ArithmeticProblems(Strict):
    """Generated problems whose answer a short Python program computes (``engine.data.arithmetic``)."""

    kind: Literal["arithmetic"] = "arithmetic"
    operations: Operations = Field(default={1: 0.45, 2: 0.4, 3: 0.15})


class FileProblems(Strict):
    """Problems from a JSONL file with ``problem`` and ``answer`` in every line."""

    kind: Literal["file"]
    path: Path = Field(description="JSONL file; a relative path is taken from the recipe's folder.")

    @field_validator("path")
    @classmethod
    def _from_recipe(cls, path: Path, info: ValidationInfo) -> Path:
        return from_recipe_folder(path, info)


Problems = Annotated[ArithmeticProblems | FileProblems, Field(discriminator="kind")]
