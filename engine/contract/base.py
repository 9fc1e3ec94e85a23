"""What every contract model shares: strict parsing, and text, numbers and paths that mean the same everywhere.

Leaves out anything heavy: this package imports pydantic and the standard library only.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo

Share = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    """A frozen model in which an unknown field is an error that names it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def visible(text: str) -> str:
    r"""Text as stored: NUL becomes the four characters ``\x00``, a lone surrogate its ``\udcxx`` escape.

    Postgres refuses NUL in text and JSON writers refuse lone surrogates; both occur in model output.
    """
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


def split_non_finite(values: Mapping[str, float | None]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Metrics with NaN and infinities as None, and which they were (``nan``, ``inf``, ``-inf``) by name."""
    finite = {name: v if v is not None and math.isfinite(v) else None for name, v in values.items()}
    flags = {name: str(float(v)) for name, v in values.items() if v is not None and not math.isfinite(v)}
    return finite, flags


def from_recipe_folder(path: Path, info: ValidationInfo) -> Path:
    """An absolute path: the resolved recipe in a run folder must mean the same from anywhere."""
    folder = (info.context or {}).get("folder")
    return (folder / path).resolve() if folder else path
