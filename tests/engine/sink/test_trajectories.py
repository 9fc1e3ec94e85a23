"""Trajectory files: back to the bit, whole or absent, hostile text included."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.contract.trajectory import StopReason, ToolCallRecord, Trajectory, Turn
from engine.sink import trajectories as module
from engine.sink.disk import SinkFull
from engine.sink.trajectories import (
    TrajectoriesUnreadable,
    read_shipped,
    read_summaries,
    read_trajectories,
    write_trajectories,
)

Make = Callable[..., Trajectory]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trajectories" / "rl-1" / "step-00012.parquet"


def test_every_field_comes_back(path: Path, make_trajectory: Make) -> None:
    written = [
        make_trajectory(),
        make_trajectory(
            reward=1.0,
            penalty=1 / 3,
            advantage=-0.1,
            u=5e-324,
            kept=True,
            kept_reason="drawn",
            answer="2",
            verdict="right",
            stop_reason=StopReason.length,
            seconds=1.5,
            first_version=3,
            last_version=4,
            policy_steps=((0, 3), (1, 4)),
        ),
        make_trajectory(ids=(), sampled=(), logprobs=(), prompt_ids=(), turns=()),
    ]
    write_trajectories(path, written)
    assert read_trajectories(path) == written


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False), max_size=6),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40),
)
def test_floats_and_text_are_exact(path: Path, make_trajectory: Make, logprobs: list[float], text: str) -> None:
    size = len(logprobs)
    written = make_trajectory(
        ids=tuple(range(size)),
        sampled=(True,) * size,
        logprobs=tuple(logprobs),
        problem=text,
        turns=(Turn(role="assistant", start=0, end=size, text=text),),
    )
    write_trajectories(path, [written])
    assert read_trajectories(path) == [written]
    assert [str(x) for x in read_trajectories(path)[0].logprobs] == [str(x) for x in logprobs]  # -0.0 is not 0.0


def test_nul_and_surrogates_are_made_visible(path: Path, make_trajectory: Make) -> None:
    # Surrogates get past the contract only by construction; the writer must not fail on them even so.
    call = ToolCallRecord.model_construct(
        name="py\x00", arguments={"code": "\ud800"}, status="error", response="\x00", error_type="E\x00",
        queued_s=0.0, wall_s=0.0,
    )  # fmt: skip
    turn = Turn.model_construct(role="assistant", start=0, end=3, text="a\x00b\udfff", calls=(call,))
    write_trajectories(path, [make_trajectory(problem="\x00?").model_copy(update={"turns": (turn,)})])
    (back,) = read_trajectories(path)
    assert back.problem == "\\x00?"
    assert back.turns[0].text == "a\\x00b\\udfff"
    assert back.calls[0].arguments == {"code": "\\ud800"}
    assert (back.calls[0].name, back.calls[0].response, back.calls[0].error_type) == (
        "py\\x00",
        "\\x00",
        "E\\x00",
    )


def test_what_people_filter_on_is_a_column(path: Path, make_trajectory: Make) -> None:
    write_trajectories(path, [make_trajectory(reward=1.0)])
    (row,) = read_summaries(path)
    expected = {
        "tool_calls": 1,
        "tool_errors": 1,
        "response_tokens": 3,
        "sampled_tokens": 2,
        "prompt_tokens": 2,
    }
    assert expected.items() <= row.items()
    assert (row["stage"], row["step"], row["reward"], row["stop_reason"]) == ("rl-1", 12, 1.0, "answered")
    assert not {"ids", "logprobs", "turns", "problem"} & row.keys()


def test_chosen_rows_come_in_the_order_asked(path: Path, make_trajectory: Make) -> None:
    write_trajectories(path, [make_trajectory(replica=n) for n in range(5)])
    assert [trajectory.replica for trajectory in read_trajectories(path, [4, 0])] == [4, 0]


def test_a_file_of_before_policy_steps_were_kept_is_read(path: Path, make_trajectory: Make) -> None:
    written = [make_trajectory()]
    write_trajectories(path, written)
    pq.write_table(pq.read_table(path).drop_columns(["policy_steps"]), path)
    assert read_trajectories(path) == written
    assert [each.policy_steps for each in read_shipped(path, "f")] == [()]


def test_policy_steps_travel(path: Path, make_trajectory: Make) -> None:
    write_trajectories(path, [make_trajectory(policy_steps=((0, 3), (1, 4)))])
    assert [each.policy_steps for each in read_shipped(path, "f")] == [((0, 3), (1, 4))]


def test_a_step_without_trajectories_has_an_empty_file(path: Path) -> None:
    write_trajectories(path, [])
    assert read_trajectories(path) == []
    assert read_summaries(path) == []


def test_a_full_disk_leaves_the_old_file_and_no_other(
    path: Path, make_trajectory: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trajectories(path, [make_trajectory()])

    def full(table: Any, where: Path, **_: Any) -> None:
        where.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.pq, "write_table", full)
    with pytest.raises(SinkFull):
        write_trajectories(path, [make_trajectory(), make_trajectory()])
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert len(read_trajectories(path)) == 1


def test_other_files_are_refused_by_name(path: Path, make_trajectory: Make) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not parquet")
    with pytest.raises(TrajectoriesUnreadable, match=r"step-00012\.parquet"):
        read_trajectories(path)
    write_trajectories(path, [make_trajectory()])
    pq.write_table(pq.read_table(path).replace_schema_metadata({}), path)
    with pytest.raises(TrajectoriesUnreadable, match="schema 1 expected, no found"):
        read_trajectories(path)
    with pytest.raises(TrajectoriesUnreadable, match=r"missing\.parquet"):
        read_trajectories(path.with_name("missing.parquet"))
