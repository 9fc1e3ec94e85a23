"""What each event makes of a run, and what a later attempt makes of what an earlier one told."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.contract.commands import Command, CommandKind
from engine.contract.delivery import Batch
from engine.contract.events import (
    CheckpointSaved,
    CommandApplied,
    CommandRejected,
    EngineLoad,
    EvalFinished,
    Event,
    LogLine,
    Phase,
    PhaseStarted,
    RunFailed,
    RunFinished,
    RunHeartbeat,
    RunStopped,
    SandboxLoad,
    StageFinished,
    StepFinished,
)
from engine.contract.trajectory import Turn
from tests.webapp.support import make_run
from tests.webapp.telemetry.rows import rows_of, shown
from tests.webapp.telemetry.telling import (
    BEGAN,
    Attempt,
    file_of,
    group,
    shipped,
    stage_started,
    started,
    step,
    tool_call,
    trajectory,
)
from webapp.runs import services
from webapp.runs.models import Attempt as AttemptRow
from webapp.runs.models import Checkpoint, Run
from webapp.telemetry import queries
from webapp.telemetry.door import Unacceptable
from webapp.telemetry.ingest import take_in
from webapp.telemetry.models import EngineMoment, MetricPoint
from webapp.trajectories.models import Group, ToolCall, Trajectory

pytestmark = pytest.mark.django_db


def tell(run: Run, attempt: Attempt, *bodies: Any, trajectories: Any = ()) -> Run:
    """Take in the attempt's next events; the run as it is then."""
    take_in(run.pk, attempt.tell(*bodies, trajectories=trajectories), launch=run.launches)
    run.refresh_from_db()
    return run


def at(attempt: int, seq: int) -> datetime:
    return datetime.fromtimestamp(BEGAN + 100 * attempt + seq, UTC)


# Where the run stands


def test_a_started_run_is_running_since_its_engine_says_so(run: Run) -> None:
    tell(run, Attempt(), started(resumed_from="attempts/0001/checkpoints/rl/step-00002"))
    assert (run.state, run.started_at, run.attempt) == ("running", at(1, 1), 1)
    told = AttemptRow.objects.get(run=run)
    assert (told.started_at, told.resumed_from) == (at(1, 1), "attempts/0001/checkpoints/rl/step-00002")


def test_steps_move_the_run_along_one_axis(run: Run) -> None:
    attempt = Attempt()
    tell(run, attempt, started(), stage_started("sft", steps=4))
    assert (run.stage, run.step, run.x) == ("sft", 0, 0)
    tell(run, attempt, step(1, "sft", loss=3.0), step(2, "sft", loss=2.0))
    assert (run.stage, run.step, run.x, run.latest) == ("sft", 2, 2, {"loss": 2.0})
    tell(run, attempt, stage_started("rl"), PhaseStarted(stage="rl", step=1, phase=Phase.sampling))
    assert (run.stage, run.step, run.x, run.phase) == ("rl", 0, 4, "sampling")
    tell(run, attempt, step(1, "rl", reward=0.5))
    assert (run.step, run.x, run.latest) == (1, 5, {"loss": 2.0, "reward": 0.5})


def test_a_stage_knows_when_it_began_and_ended(run: Run) -> None:
    attempt = Attempt()
    tell(run, attempt, started(), stage_started("sft", steps=4), *(step(n, "sft") for n in (1, 2, 3, 4)))
    stage = run.stages.get(name="sft")
    assert (stage.started_at, stage.finished_at, stage.trained_steps) == (at(1, 2), None, 4)
    tell(run, attempt, StageFinished(stage="sft", steps=4))
    assert run.stages.get(name="sft").finished_at == at(1, 7)


@pytest.mark.parametrize(
    ("last_word", "state", "reason"),
    [
        (RunFinished(seconds=1.0), "finished", ""),
        (RunStopped(reason="asked by ada"), "stopped", "asked by ada"),
        (RunFailed(error="SinkFull", message="the disk is full"), "failed", "SinkFull: the disk is full"),
    ],
)
def test_the_last_word_ends_the_run_with_its_reason(run: Run, last_word: Any, state: str, reason: str) -> None:
    tell(run, Attempt(), started(), PhaseStarted(stage="rl", step=1, phase=Phase.update), last_word)
    assert (run.state, run.state_reason, run.ended_at, run.phase) == (state, reason, at(1, 3), "")
    told = AttemptRow.objects.get(run=run)
    assert (told.outcome, told.message, told.ended_at) == (state, reason, at(1, 3))
    assert run.transitions.last().actor == "engine"


# Numbers


def test_a_step_tells_its_metrics_and_its_seconds(run: Run) -> None:
    told = StepFinished(stage="rl", step=2, metrics={"reward": 0.5}, seconds={"sampling": 1.5})
    tell(run, Attempt(), started(), stage_started(), told)
    point = MetricPoint.objects.get(key="reward")
    assert (point.stage, point.step, point.x, point.value, point.at) == ("rl", 2, 6, 0.5, at(1, 3))
    assert shown(run, "seconds.sampling") == [(6, 1.5)]


def test_a_number_that_is_none_says_which(run: Run) -> None:
    told = StepFinished(stage="rl", step=1, metrics={"a": float("nan"), "b": float("-inf"), "c": None})
    tell(run, Attempt(), started(), stage_started(), told)
    assert sorted(MetricPoint.objects.values_list("key", "value", "non_finite")) == [
        ("a", None, "nan"),
        ("b", None, "-inf"),
        ("c", None, ""),
    ]


def test_an_evaluation_stands_where_the_stage_before_it_ended_and_has_names_of_its_own(run: Run) -> None:
    """Training steps tell a tool-error rate too: it is another figure, and would be on the same line."""
    told = EvalFinished(stage="eval", metrics={"pass@1": 0.75, "tool_error_rate": 0.5, "kl": float("nan")})
    tell(run, Attempt(), started(), stage_started("eval"), told)
    assert (shown(run, "pass@1"), shown(run, "eval.tool_error_rate")) == ([(14, 0.75)], [(14, 0.5)])
    assert shown(run, "tool_error_rate") == []
    assert queries.series(run, ["eval.kl"])["eval.kl"].non_finite == [{"x": 14, "which": "nan"}]
    assert run.stages.get(name="eval").metrics == {"pass@1": 0.75, "tool_error_rate": 0.5, "kl": None}
    assert run.latest["pass@1"] == 0.75
    assert (run.step, run.x) == (0, 14)


def test_the_load_of_the_sandbox_is_a_series(run: Run) -> None:
    load = SandboxLoad(stage="rl", step=3, calls=6, statuses={"ok": 4, "error": 2}, queued_s=0.1, wall_s=0.5)
    tell(run, Attempt(), started(), stage_started(), load)
    keys = ["sandbox.calls", "sandbox.queued_s", "sandbox.status.error", "sandbox.status.ok", "sandbox.wall_s"]
    assert queries.keys_of(run) == keys
    assert [shown(run, key)[0] for key in keys] == [(7, 6.0), (7, 0.1), (7, 2.0), (7, 4.0), (7, 0.5)]


def test_the_slowest_calls_are_series_where_an_engine_tells_them(run: Run) -> None:
    load = SandboxLoad(stage="rl", step=3, calls=0, statuses={}, queued_s=0, wall_s=0, queued_p99_s=2, queued=5)
    tell(run, Attempt(), started(), stage_started(), load)
    assert shown(run, "sandbox.queued_p99_s") == [(7, 2)]
    assert shown(run, "sandbox.queued") == [(7, 5)]
    assert shown(run, "sandbox.wall_p99_s") == []


def test_what_engines_tell_within_a_step_makes_a_timeline(run: Run) -> None:
    """Several times a step: later ones replace nothing, and a number that is none is null."""
    attempt = Attempt()
    tell(run, attempt, started(), stage_started())
    for running in (3.0, 2.0):
        load = EngineLoad(stage="rl", step=2, engine="vllm-0", metrics={"running": running, "cache": float("inf")})
        tell(run, attempt, load)
    found = EngineMoment.objects.filter(run=run)
    assert [(moment.step, moment.engines) for moment in found] == [
        (2, {"vllm-0": {"running": 3.0, "cache": None}}),
        (2, {"vllm-0": {"running": 2.0, "cache": None}}),
    ]
    assert [moment.at for moment in found] == [at(1, 3), at(1, 4)]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_engines_that_were_asked_together_are_one_moment_wherever_a_batch_ends(run: Run, cut: int) -> None:
    asked = [(10.0, "vllm-0"), (10.01, "vllm-1"), (20.0, "vllm-0"), (20.01, "vllm-1")]
    events = [
        Event(attempt=1, seq=seq, at=BEGAN + after, body=EngineLoad(stage="rl", step=1, engine=engine))
        for seq, (after, engine) in enumerate(asked, start=1)
    ]
    for some in (events[:cut], events[cut:]):
        take_in(run.pk, Batch(attempt=1, events=tuple(some)), launch=1)
    found = EngineMoment.objects.filter(run=run).values_list("at", "engines")
    assert [(moment.timestamp() - BEGAN, sorted(engines)) for moment, engines in found] == [
        (10, ["vllm-0", "vllm-1"]),
        (20, ["vllm-0", "vllm-1"]),
    ]


def test_the_load_of_a_stage_that_is_not_there_is_refused(run: Run) -> None:
    with pytest.raises(Unacceptable, match="no stage 'dpo'"):
        tell(run, Attempt(), started(), EngineLoad(stage="dpo", step=1, engine="vllm-0"))


def test_groups_keep_what_downsampling_made_of_them(run: Run) -> None:
    tell(run, Attempt(), started(), stage_started(), group(3, 2, right=4, outcome="all_right", kept=0))
    row = Group.objects.get()
    assert (row.name, row.step, row.problem_id, row.outcome, row.right, row.kept) == (
        "rl/2/3",
        2,
        "p3",
        "all_right",
        4,
        0,
    )


def test_a_group_that_is_told_twice_is_one_group_at_one_address(run: Run) -> None:
    attempt = Attempt()
    tell(run, attempt, started(), stage_started(), group(0, 1, kept=1))
    before = Group.objects.get().pk
    tell(run, attempt, group(0, 1, kept=1), group(0, 1, kept=2))
    assert list(Group.objects.values_list("pk", "kept")) == [(before, 2)]


def test_a_checkpoint_belongs_to_the_attempt_whose_folder_it_lies_in(run: Run) -> None:
    """Killed between checkpoint and step: the next attempt tells both again."""
    told = CheckpointSaved(stage="rl", step=2, path="attempts/0001/checkpoints/rl/step-00002")
    tell(run, Attempt(1), started(), stage_started(), told)
    tell(run, Attempt(2), started(), stage_started("rl", 3), told)
    row = Checkpoint.objects.get()
    assert (row.attempt, row.stage, row.step, row.created_at) == (1, "rl", 2, at(1, 3))


# Commands


def test_a_pause_that_was_asked_for_while_the_engine_started_waits_for_it(run: Run) -> None:
    asked = services.send_command(run.pk, "pause", by="ada")
    attempt = Attempt()
    assert tell(run, attempt, started()).state == "pausing"
    command = Command(kind=CommandKind.pause, by="ada", id=asked.pk)
    assert tell(run, attempt, CommandApplied(command=command)).state == "paused"
    assert run.state_reason == "asked by ada"
    assert [(each.before, each.after) for each in run.transitions.all()][-3:] == [
        ("starting", "running"),
        ("running", "pausing"),
        ("pausing", "paused"),
    ]
    asked.refresh_from_db()
    assert (asked.status, bool(asked.ended_at)) == ("applied", True)


def test_a_run_goes_on_when_its_engine_does(run: Run) -> None:
    attempt = Attempt()
    tell(run, attempt, started(), CommandApplied(command=Command(kind=CommandKind.pause, by="signal SIGUSR1")))
    assert run.state == "paused"
    asked = services.send_command(run.pk, "resume", by="ada")
    run.refresh_from_db()
    assert run.state == "paused"
    command = Command(kind=CommandKind.resume, by="ada", id=asked.pk)
    assert tell(run, attempt, CommandApplied(command=command)).state == "running"


def test_a_rejected_command_says_why_and_leaves_the_state(run: Run) -> None:
    attempt = Attempt()
    tell(run, attempt, started())
    asked = services.send_command(run.pk, "checkpoint", by="ada")
    command = Command(kind=CommandKind.checkpoint, by="ada", id=asked.pk)
    assert tell(run, attempt, CommandRejected(command=command, reason="nothing to save")).state == "running"
    asked.refresh_from_db()
    assert (asked.status, asked.note) == ("rejected", "nothing to save")


def test_a_run_that_is_to_stop_stays_so_until_its_engine_has_ended(run: Run) -> None:
    """The pause was on its way when somebody stopped the run; starting is no reason to run either."""
    services.send_command(run.pk, "stop", by="ada")
    attempt = Attempt()
    assert tell(run, attempt, started()).state == "stopping"
    pause = Command(kind=CommandKind.pause, by="bob")
    assert tell(run, attempt, CommandApplied(command=pause)).state == "stopping"
    assert tell(run, attempt, RunStopped(reason="asked by ada")).state == "stopped"
    assert run.commands.get(kind="stop").status == "applied"


def test_the_reason_that_somebody_gave_stays_when_the_engine_does_it(run: Run) -> None:
    """The engine only knows who asked."""
    attempt = Attempt()
    tell(run, attempt, started())
    asked = services.send_command(run.pk, "pause", by="ada", reason="lunch")
    pause = Command(kind=CommandKind.pause, by="ada", id=asked.pk)
    tell(run, attempt, CommandApplied(command=pause))
    assert (run.state, run.state_reason) == ("paused", "lunch")
    services.send_command(run.pk, "stop", by="ada", reason="enough seen")
    tell(run, attempt, RunStopped(reason="asked by ada"))
    assert (run.state, run.state_reason) == ("stopped", "enough seen")


# Attempts


def test_a_later_attempt_supersedes_the_steps_that_it_does_again(run: Run) -> None:
    first, second = Attempt(1), Attempt(2)
    tell(run, first, started(), stage_started(), group(0, 1), step(1), trajectories=shipped(2, 1))
    tell(run, first, group(0, 2), step(2), group(0, 3), step(3), trajectories=[*shipped(2, 2), *shipped(2, 3)])
    seen = run.revision
    tell(run, second, started(), stage_started("rl", 2))
    assert [x for x, _ in shown(run, "loss")] == [5]
    for model in (Group, Trajectory):
        assert set(model.objects.filter(superseded=False).values_list("step", flat=True)) == {1}
    assert (run.step, run.x, run.stages.get(name="rl").trained_steps) == (1, 5, 1)
    assert run.reset_revision == run.revision > seen
    assert MetricPoint.objects.filter(superseded=True).count() == 2  # kept as history


def test_nothing_is_reset_when_nothing_was_shown(run: Run) -> None:
    tell(run, Attempt(1), started(), stage_started())
    tell(run, Attempt(2), started(), stage_started("rl", 1))
    assert run.reset_revision == 0


def test_a_step_whose_event_was_lost_is_told_by_the_next_attempt_and_keeps_its_rollouts(run: Run) -> None:
    """Killed between checkpoint and event (docs/adr/0003): groups and trajectories are the first attempt's."""
    first, second = Attempt(1), Attempt(2)
    tell(run, first, started(), stage_started(), group(0, 1), step(1), group(0, 2), trajectories=shipped(2, 1))
    told = StepFinished(stage="rl", step=2, metrics={"loss": 0.5}, trajectories=file_of(1, 2))
    tell(run, second, started(), stage_started("rl", 3), told, trajectories=shipped(2, 2, attempt=1))
    assert shown(run, "loss") == [(5, 1.0), (6, 0.5)]
    assert not Group.objects.filter(superseded=True).exists()
    assert set(Trajectory.objects.filter(superseded=False).values_list("attempt", "step")) == {(1, 1), (1, 2)}
    assert (run.step, run.stages.get(name="rl").trained_steps) == (2, 2)


def test_a_step_that_two_attempts_told_counts_once_and_the_later_stands(run: Run) -> None:
    tell(run, Attempt(1), started(), stage_started(), step(1, loss=0.9), step(2, loss=0.8))
    tell(run, Attempt(2), started(), stage_started("rl", 3), step(2, loss=0.7))
    assert shown(run, "loss") == [(5, 0.9), (6, 0.7)]
    assert list(MetricPoint.objects.filter(superseded=True).values_list("attempt", "value")) == [(1, 0.8)]


def test_an_evaluation_that_is_done_again_is_one_evaluation(run: Run) -> None:
    first, second = Attempt(1), Attempt(2)
    tell(run, first, started(), stage_started("eval"), EvalFinished(stage="eval", metrics={"pass@1": 0.1}))
    tell(run, second, started(), stage_started("eval"))
    assert (shown(run, "pass@1"), run.stages.get(name="eval").metrics) == ([], {})
    tell(run, second, EvalFinished(stage="eval", metrics={"pass@1": 0.2}))
    assert shown(run, "pass@1") == [(14, 0.2)]


def test_what_an_earlier_launch_left_to_tell_is_history(run: Run) -> None:
    """The engine of the second launch sends what the first could not any more: it ends nothing."""
    first = Attempt(1)
    tell(run, first, started(), stage_started(), step(1))
    services.engine_gone(run.pk, 1, "killed by SIGKILL")
    services.send_command(run.pk, "resume", by="ada")
    assert tell(run, first, RunStopped(reason="asked by bob")).state == "queued"
    services.next_launch(run.pk)
    run.refresh_from_db()
    assert (run.state, run.launches) == ("starting", 2)
    tell(run, first, step(2), RunFailed(error="OSError", message="no space left"))
    assert (run.state, run.x) == ("starting", 6)
    assert AttemptRow.objects.get(run=run).message == "OSError: no space left"
    assert tell(run, Attempt(2), started()).state == "running"


def test_an_engine_that_was_taken_for_dead_is_believed(run: Run) -> None:
    services.could_not_start(run.pk, "the agent did not answer")
    run.refresh_from_db()
    assert run.state == "failed"
    assert tell(run, Attempt(), started()).state == "running"
    assert run.ended_at is None


def story(number: int, first_step: int, last_step: int) -> Attempt:
    """An attempt that tells the step before its first one again, does some, tells the last of them twice, and fails."""
    attempt = Attempt(number)
    attempt.tell(started(), stage_started("rl", first_step))
    if first_step > 1:
        attempt.tell(step(first_step - 1, loss=number + 0.9))
    for done in range(first_step, last_step + 1):
        attempt.tell(group(0, done), LogLine(message=str(done)), step(done, loss=number + done / 100))
    attempt.tell(step(last_step, loss=number + 0.5), RunHeartbeat(), RunFailed(error="OSError", message=str(number)))
    return attempt


STORIES = ((1, 1, 4), (2, 3, 5), (3, 5, 7))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(1, 5)), max_size=12))
def test_the_order_in_which_attempts_arrive_does_not_matter(run: Run, arrivals: list[tuple[int, int]]) -> None:
    """Each attempt's events in order, the attempts in any: the rows are those of one after the other."""
    stories = [story(*each) for each in STORIES]
    in_order, mixed = make_run(state="starting", attempt=0), make_run(state="starting", attempt=0)
    for attempt in stories:
        send(in_order, attempt, 0, len(attempt.events))
    sent = [0, 0, 0]
    for which, some in [*arrivals, *((which, 100) for which in (2, 1, 0))]:
        sent[which] = send(mixed, stories[which], sent[which], sent[which] + some)
    assert of_interest(mixed) == of_interest(in_order)


def send(run: Run, attempt: Attempt, first: int, last: int) -> int:
    events = tuple(attempt.events[first:last])
    files = [each for event in events if isinstance(event.body, StepFinished) for each in rollouts(attempt, event.body)]
    take_in(run.pk, Batch(attempt=attempt.number, events=events, trajectories=tuple(files)), launch=1)
    return first + len(events)


def rollouts(attempt: Attempt, done: StepFinished) -> Any:
    return shipped(1, done.step, attempt=attempt.number)


def of_interest(run: Run) -> dict[str, list[str]]:
    own = {"id", "run_id", "trajectory_id"}
    rows = rows_of(run)
    rows["Run"] = [
        {name: rows["Run"][0][name] for name in ("attempt", "stage", "step", "x", "state", "state_reason", "ended_at")}
    ]
    return {
        name: sorted(repr({k: v for k, v in row.items() if k not in own}) for row in of) for name, of in rows.items()
    }


# What cannot be


@pytest.mark.parametrize(
    ("body", "place", "said"),
    [
        (stage_started("dpo"), "/events/1/body/stage", "no stage 'dpo'; it has: sft, rl, eval"),
        (step(1, "dpo"), "/events/1/body/stage", "no stage 'dpo'"),
        (group(stage="dpo"), "/events/1/body/stage", "no stage 'dpo'"),
        (CheckpointSaved(stage="rl", step=1, path="/etc/passwd"), "/events/1/body/path", "attempts/NNNN/"),
    ],
)
def test_what_the_run_does_not_have_is_named(run: Run, body: Any, place: str, said: str) -> None:
    with pytest.raises(Unacceptable, match=said) as refused:
        tell(run, Attempt(), started(), body)
    assert list(refused.value.faults) == [place]
    assert not AttemptRow.objects.filter(run=run).exists()


@pytest.mark.parametrize(("file", "said"), [("../1.parquet", "attempts/NNNN/"), (file_of(2, 1), "of attempt 2")])
def test_a_trajectory_of_nowhere_is_named(run: Run, file: str, said: str) -> None:
    wrong = shipped(1)[0].model_copy(update={"file": file})
    with pytest.raises(Unacceptable, match=said) as refused:
        tell(run, Attempt(), started(), trajectories=[wrong])
    assert list(refused.value.faults) == ["/trajectories/0/file"]


def test_a_trajectory_is_stored_field_by_field(run: Run) -> None:
    tell(run, Attempt(), started(), stage_started(), trajectories=shipped(1, 2, reward=float("nan")))
    row, told = Trajectory.objects.get(), trajectory(0, 2)
    for name in ("stage", "step", "replica", "problem", "gold", "stop_reason", "answer", "verdict", "kept", "u"):
        assert getattr(row, name) == getattr(told, name), name
    assert (row.group_name, row.file, row.row, row.attempt) == ("rl/2/0", file_of(1, 2), 0, 1)
    assert (row.prompt_tokens, row.response_tokens, row.sampled_tokens) == (2, 4, 3)
    assert (row.assistant_turns, row.tool_calls, row.tool_errors) == (2, 2, 1)
    assert row.reward is None  # JSON has no NaN; the run folder has it as it was
    turns = list(row.turns.values_list("position", "role", "start", "end", "text"))
    assert turns == [(n, turn.role, turn.start, turn.end, turn.text) for n, turn in enumerate(told.turns)]
    calls = list(row.calls.values_list("turn", "position", "status", "arguments", "error_type", "wall_s"))
    assert calls == [
        (0, 0, "error", {"code": "1/0"}, "ZeroDivisionError", 0.2),
        (0, 1, "ok", {"code": "1/0"}, "ZeroDivisionError", 0.2),
    ]


def test_which_policy_step_sampled_what_is_stored_where_there_were_several(run: Run) -> None:
    attempt = Attempt()
    tell(run, attempt, started(), stage_started(), trajectories=shipped(1, 1))
    tell(run, attempt, trajectories=shipped(1, 2, policy_steps=((0, 1), (3, 2)), last_version=2))
    assert [row.policy_steps for row in Trajectory.objects.order_by("step")] == [[], [[0, 1], [3, 2]]]


def test_an_error_type_of_any_length_fits_its_index(run: Run) -> None:
    """A program names its exceptions as it likes; that must not hold up what its run tells."""
    long = "E" * 9000
    turn = Turn(role="assistant", start=0, end=4, text="", calls=(tool_call(error_type=long),))
    tell(run, Attempt(), started(), stage_started(), trajectories=shipped(1, 2, turns=(turn,)))
    assert ToolCall.objects.get().error_type == long[:200]


def test_addresses_sort_by_step_and_place(run: Run) -> None:
    attempt = Attempt()
    tell(run, attempt, started(), stage_started())
    for number in (10, 2, 1):
        tell(run, attempt, group(1, number), group(0, number), trajectories=shipped(3, number))
    in_order = [(number, row) for number in (1, 2, 10) for row in range(3)]
    assert list(Trajectory.objects.order_by("id").values_list("step", "row")) == in_order
    names = [f"rl/{number}/{place}" for number in (1, 2, 10) for place in range(2)]
    assert list(Group.objects.order_by("id").values_list("name", flat=True)) == names
