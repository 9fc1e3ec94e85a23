"""Model folders: the run's own copy, and the small files that go along with weights.

A folder holds config.json, model.safetensors and a tokenizer, as transformers and vLLM read them.
"""

import shutil
from pathlib import Path

from engine.contract.models import Model, TinyModel
from engine.learner.checkpoint import atomic_folder

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files that ``source`` has."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy2(source / name, target / name)


def ensure_model(folder: Path, model: Model, *, seed: int) -> None:
    """Make the run's initial model in ``folder``, unless it is already there completely."""
    if (folder / "config.json").is_file():
        return
    with atomic_folder(folder) as target:
        if isinstance(model, TinyModel):
            from engine.models.tiny import make_tiny_model  # torch and transformers: seconds to import

            make_tiny_model(target, model, seed=seed)
        else:
            shutil.copytree(model.path, target, dirs_exist_ok=True)
