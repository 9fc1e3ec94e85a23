"""Trajectories of one step as one Parquet file, one row a trajectory, back to the bit.

What people filter on is a column of its own, also what follows from the rest (calls, errors, lengths), so
that DuckDB or pandas need nothing of ours. Token ids, mask and log-probabilities are list columns, turns are
JSON. Log-probabilities are stored as 64-bit floats: Python's floats come back exactly whoever made them, and
split into byte streams a float32 value costs little more than its four bytes. Leaves out which file belongs
to which step: ``run_folder.py``.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from engine.contract.base import visible
from engine.contract.delivery import ShippedTrajectory
from engine.contract.trajectory import Trajectory, Turn
from engine.sink.disk import replace_file

SCHEMA_VERSION = b"1"

_turns = TypeAdapter(tuple[Turn, ...])

# The fields of Trajectory that are stored as they are, with their Parquet types.
_FIELDS: dict[str, pa.DataType] = {
    "stage": pa.string(),
    "step": pa.int64(),
    "group": pa.string(),
    "replica": pa.int64(),
    "problem_id": pa.string(),
    "problem": pa.string(),
    "gold": pa.string(),
    "stop_reason": pa.string(),
    "first_version": pa.int64(),
    "last_version": pa.int64(),
    "answer": pa.string(),
    "verdict": pa.string(),
    "reward": pa.float64(),
    "reward_status": pa.string(),
    "u": pa.float64(),
    "penalty": pa.float64(),
    "advantage": pa.float64(),
    "kept": pa.bool_(),
    "kept_reason": pa.string(),
    "seconds": pa.float64(),
    "prompt_ids": pa.list_(pa.int32()),
    "ids": pa.list_(pa.int32()),
    "sampled": pa.list_(pa.bool_()),
    "logprobs": pa.list_(pa.float64()),
    "policy_steps": pa.list_(pa.list_(pa.int64())),
}
_YOUNGER = ("policy_steps",)  # Older files do not have it.
# What follows from the fields, for filters only: not read back.
_DERIVED: dict[str, pa.DataType] = {
    "tool_calls": pa.int64(),
    "tool_errors": pa.int64(),
    "assistant_turns": pa.int64(),
    "prompt_tokens": pa.int64(),
    "response_tokens": pa.int64(),
    "sampled_tokens": pa.int64(),
}
_LISTS = ("prompt_ids", "ids", "sampled", "logprobs")
_SCHEMA = pa.schema(
    [*_FIELDS.items(), ("turns", pa.string()), *_DERIVED.items()],
    metadata={b"starloom.trajectories": SCHEMA_VERSION},
)

_SHIPPED = (*(name for name in _FIELDS if name not in _LISTS), "turns", *_DERIVED)
SUMMARY_COLUMNS = tuple(name for name in (*_FIELDS, *_DERIVED) if name not in (*_LISTS, *_YOUNGER, "problem"))


class TrajectoriesUnreadable(Exception):
    """A file that is no trajectory file of this schema."""


def write_trajectories(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """Write the file whole or not at all. Raises ``SinkFull`` when the disk is full."""
    table = pa.Table.from_pylist([_row(trajectory) for trajectory in trajectories], schema=_SCHEMA)
    replace_file(path, lambda temporary: _write(table, temporary))


def _write(table: pa.Table, path: Path) -> None:
    # Byte streams of the log-probabilities compress well only without a dictionary before them.
    dictionary = [name for name in table.schema.names if name not in _LISTS]
    pq.write_table(
        table,
        path,
        compression="zstd",
        use_dictionary=dictionary,
        use_byte_stream_split=["logprobs.list.element"],
    )


def _row(trajectory: Trajectory) -> dict[str, Any]:
    stored = {name: _storable(getattr(trajectory, name)) for name in _FIELDS}
    turns = visible(_turns.dump_json(_visible_turns(trajectory.turns)).decode("utf-8"))
    return {
        **stored,
        "turns": turns,
        "tool_calls": len(trajectory.calls),
        "tool_errors": trajectory.tool_errors,
        "assistant_turns": trajectory.assistant_turns,
        "prompt_tokens": len(trajectory.prompt_ids),
        "response_tokens": len(trajectory.ids),
        "sampled_tokens": sum(trajectory.sampled),
    }


def _storable(value: object) -> object:
    return visible(value) if isinstance(value, str) else value


def _visible_turns(turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Turns with every text made visible; as they are when nothing needs it, which is nearly always."""
    return tuple(
        turn.model_copy(update={"text": visible(turn.text), "calls": tuple(_visible_call(c) for c in turn.calls)})
        for turn in turns
    )


def _visible_call(call: Any) -> Any:
    return call.model_copy(
        update={
            "name": visible(call.name),
            "arguments": {visible(name): visible(value) for name, value in call.arguments.items()},
            "response": visible(call.response),
            "error_type": None if call.error_type is None else visible(call.error_type),
        }
    )


def read_trajectories(path: Path, rows: Sequence[int] | None = None) -> list[Trajectory]:
    """The file's trajectories, or those of the given row numbers in that order."""
    table = _read(path, [*_FIELDS, "turns"])
    if rows is not None:
        table = table.take(pa.array(rows, pa.int64()))
    return [_trajectory(row) for row in table.to_pylist()]


def read_summaries(path: Path) -> list[dict[str, Any]]:
    """The rows without texts and tokens: cheap enough to look through every step of a run."""
    rows: list[dict[str, Any]] = _read(path, list(SUMMARY_COLUMNS)).to_pylist()
    return rows


def read_shipped(path: Path, file: str, *, at_once: int = 250) -> Iterator[ShippedTrajectory]:
    """The file's trajectories without their tokens, in order; ``file`` is its name in the run folder.

    Never holds more than ``at_once`` rows. Raises ``TrajectoriesUnreadable``, also halfway.
    """
    try:
        with pq.ParquetFile(path) as parquet:
            _refuse_other_schema(path, parquet.schema_arrow)
            wanted = [name for name in _SHIPPED if name in ShippedTrajectory.model_fields]
            columns = _there(wanted, parquet.schema_arrow)
            number = 0
            for rows in parquet.iter_batches(batch_size=at_once, columns=columns):
                for row in rows.to_pylist():
                    yield _shipped(row, file, number)
                    number += 1
    except (pa.ArrowException, OSError, KeyError, ValidationError) as error:
        raise TrajectoriesUnreadable(f"{path}: {error}") from error


def _shipped(row: dict[str, Any], file: str, number: int) -> ShippedTrajectory:
    turns = _turns.validate_json(row.pop("turns"))
    return ShippedTrajectory(**row, turns=turns, file=file, row=number)


def _trajectory(row: dict[str, Any]) -> Trajectory:
    turns = _turns.validate_json(row.pop("turns"))
    return Trajectory(**row, turns=turns)


def _read(path: Path, columns: list[str]) -> pa.Table:
    try:
        table = pq.read_table(path, columns=_there(columns, pq.read_schema(path)), partitioning=None)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise TrajectoriesUnreadable(f"{path}: {error}") from error
    _refuse_other_schema(path, table.schema)
    return table


def _there(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """The columns, without those that an older file does not have."""
    return [name for name in columns if name in schema.names or name not in _YOUNGER]


def _refuse_other_schema(path: Path, schema: pa.Schema) -> None:
    version = (schema.metadata or {}).get(b"starloom.trajectories")
    if version != SCHEMA_VERSION:
        found = "no" if version is None else version.decode()
        raise TrajectoriesUnreadable(f"{path}: trajectory schema {SCHEMA_VERSION.decode()} expected, {found} found")
