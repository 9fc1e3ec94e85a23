"""The state machine, every pair of states. A row is where a run is, a column where it would go."""

import pytest

from webapp.runs.states import ALLOWED, ENDED, LIVING, WITH_ENGINE, State, allowed_commands, may_change

# `x`: anybody's decision; `h`: only when the engine says so; `.`: never.
TABLE = """
            queued starting running pausing paused stopping stopped finished failed
queued      .      x        h       .       h      .        x       h        x
starting    .      .        x       .       h      x        x       x        x
running     .      .        .       x       x      x        x       x        x
pausing     .      .        x       .       x      x        x       x        x
paused      .      .        x       .       .      x        x       x        x
stopping    .      .        h       .       h      .        x       x        x
stopped     x      .        h       .       h      .        .       h        h
finished    .      .        h       .       h      .        h       .        h
failed      x      .        h       .       h      .        h       h        .
"""
_HEADER, *_ROWS = TABLE.strip().splitlines()
PAIRS = [
    (State(row.split()[0]), State(after), mark)
    for row in _ROWS
    for after, mark in zip(_HEADER.split(), row.split()[1:], strict=True)
]


def test_the_table_is_whole() -> None:
    assert {(before, after) for before, after, _ in PAIRS} == {(before, after) for before in State for after in State}


@pytest.mark.parametrize(("before", "after", "mark"), PAIRS)
def test_a_run_may_go(before: State, after: State, mark: str) -> None:
    assert may_change(before, after) is (mark == "x")
    assert may_change(before, after, heard=True) is (mark in "xh")


def test_states_that_have_an_engine() -> None:
    assert {"stopped", "finished", "failed"} == ENDED
    assert WITH_ENGINE | {State.queued} == LIVING == set(State) - ENDED


@pytest.mark.parametrize(
    ("state", "commands"),
    [
        ("queued", ["stop"]),
        ("starting", ["pause", "stop", "kill"]),
        ("running", ["pause", "stop", "checkpoint", "kill"]),
        ("pausing", ["resume", "stop", "kill"]),
        ("paused", ["resume", "stop", "kill"]),
        ("stopping", ["kill"]),
        ("stopped", ["resume"]),
        ("failed", ["resume"]),
        ("finished", []),
    ],
)
def test_what_may_be_asked(state: str, commands: list[str]) -> None:
    assert allowed_commands(State(state)) == commands


def test_no_command_is_for_a_state_that_it_would_leave_unchanged_for_ever() -> None:
    """Every living run can be ended, every ended one but a finished one can go on."""
    assert all("stop" in allowed_commands(s) or "kill" in allowed_commands(s) for s in LIVING)
    assert [s for s in ENDED if not allowed_commands(s)] == [State.finished]
    assert set(ALLOWED) == {"pause", "resume", "stop", "checkpoint", "kill"}
