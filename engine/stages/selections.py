"""The selections of a step as one file, a JSON line a group: why each rollout was kept or not, to be decided again.

    attempts/0001/selections/<stage>/step-00012.jsonl

``python -m engine explain-roc`` reads a line of it. Leaves out what a line holds: ``engine.downsample.record``.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from engine.sink.disk import replace_file
from engine.sink.run_folder import RunFolder
from engine.stages.scoring import Group


def selections_path(folder: RunFolder, attempt: int, stage: str, step: int) -> Path:
    return folder.attempt(attempt) / "selections" / stage / f"step-{step:05d}.jsonl"


def write_selections(path: Path, groups: Sequence[Group]) -> None:
    """Write the file whole or not at all. Raises ``SinkFull`` when the disk is full."""
    lines = [json.dumps(group.record.as_dict(), allow_nan=False) + "\n" for group in groups]
    replace_file(path, lambda temporary: temporary.write_text("".join(lines), encoding="utf-8"))
