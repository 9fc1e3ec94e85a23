"""Trajectories as lists and pages read them."""

from pathlib import Path
from typing import Any

import pytest

from tests.webapp.support import make_run
from tests.webapp.telemetry.telling import Attempt, shipped, stage_started, started, step
from webapp.runs.models import Run
from webapp.telemetry.ingest import take_in
from webapp.trajectories.models import Trajectory
from webapp.trajectories.queries import trajectory_list, transcript

pytestmark = pytest.mark.django_db


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two steps of three rollouts; a second attempt does the second step again."""
    made = make_run(state="starting", attempt=0, folder=str(tmp_path / "run"))
    first, second = Attempt(1), Attempt(2)
    files = [*shipped(3, 1), *shipped(3, 2)]
    take_in(made.pk, first.tell(started(), stage_started(), step(1), step(2), trajectories=files), launch=1)
    again = shipped(3, 2, attempt=2)
    take_in(made.pk, second.tell(started(), stage_started("rl", 2), step(2), trajectories=again), launch=1)
    return made


def test_a_list_shows_what_counts_in_the_order_of_the_steps(run: Run) -> None:
    found = [(row.attempt, row.step, row.row) for row in trajectory_list(run)]
    assert found == [(1, 1, 0), (1, 1, 1), (1, 1, 2), (2, 2, 0), (2, 2, 1), (2, 2, 2)]
    assert trajectory_list(run, history=True).count() == 9


def test_a_list_is_one_query_without_long_texts(run: Run, django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1) as queries:
        for row in trajectory_list(run):
            assert (row.answer, row.tool_calls) == ("3", 2)
    for column in ("problem", "gold", "kept_reason"):
        assert f'"{column}"' not in queries[0]["sql"]


def test_a_transcript_is_three_queries(run: Run, django_assert_num_queries: Any) -> None:
    wanted = trajectory_list(run).first()
    assert wanted is not None
    with django_assert_num_queries(3):
        found = transcript(Trajectory.objects.get(pk=wanted.pk))
        shown = [(turn.role, [call.status for call in calls]) for turn, calls in found.turns]
    assert shown == [("assistant", ["error", "ok"]), ("tool", []), ("assistant", [])]
    assert found.trajectory.problem == "1 + 1?"


def test_another_run_has_its_own(run: Run) -> None:
    assert not trajectory_list(make_run(), history=True).exists()
