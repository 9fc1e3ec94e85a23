"""A run's recorded steps, simulated: what is read of them, and whether the time they took is found again."""

import numpy as np
import pytest

from engine.contract.events import EngineLoad, RunStarted, StagePlan, StepFinished
from engine.contract.job import Recipe
from engine.contract.provenance import new_job
from engine.contract.resources import RolloutResources
from engine.contract.trajectory import StopReason, ToolCallRecord, Trajectory, Turn
from engine.rollout.scheduling.base import Size
from engine.simulate.engine_model import EngineModel
from engine.simulate.replay import (
    NothingToReplay,
    RecordedBatch,
    Replayer,
    Use,
    as_rollout,
    non_negative,
    predict,
    replay,
)
from engine.simulate.workload import SimulatedRollout
from engine.sink.event_log import EventLog
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import write_trajectories

RESOURCES = RolloutResources(engines=2)


def call(queued_s: float, wall_s: float) -> ToolCallRecord:
    return ToolCallRecord(name="python", status="ok", response="", queued_s=queued_s, wall_s=wall_s)


def trajectory(step: int = 1, replica: int = 0, ends: bool = True) -> Trajectory:
    """Turns of 7 and 4 tokens with a tool's 3 between, or with the tool's as the last (turns ran out)."""
    turns = [
        Turn(role="assistant", start=0, end=7, text=""),
        Turn(role="tool", start=7, end=10, text="", calls=(call(0.1, 0.4), call(0.0, 0.2))),
    ]
    turns += [Turn(role="assistant", start=10, end=14, text="")] if ends else []
    count = turns[-1].end
    return Trajectory(
        stage="rl",
        step=step,
        group=f"g-{step}",
        replica=replica,
        problem_id="p",
        problem="",
        gold="",
        prompt_ids=(1,) * 20,
        ids=(2,) * count,
        sampled=(True,) * count,
        logprobs=(0.0,) * count,
        turns=tuple(turns),
        stop_reason=StopReason.answered,
    )


def test_a_trajectory_is_its_turns_and_the_longest_of_the_calls_that_ran_together():
    assert as_rollout(trajectory(), 64) == SimulatedRollout(Size("g-1", 20, 84), (7, 4), (3,), (0.5,))


def test_a_tool_after_the_last_sampled_turn_counts_for_nothing():
    assert as_rollout(trajectory(ends=False), 64) == SimulatedRollout(Size("g-1", 20, 84), (7,), (), ())


def recorded(steps: int, truth: EngineModel) -> list[RecordedBatch]:
    """Batches of different sizes that took as long as they do on engines like ``truth``."""
    random = np.random.default_rng(1)
    batches = []
    for step in range(1, steps + 1):
        rollouts = tuple(
            SimulatedRollout(
                Size(f"{step}-{number // 4}", 60, 560),
                tuple(random.integers(5, 120, 2).tolist()),
                (10,),
                (float(random.uniform(0.05, 0.4)),),
            )
            for number in range(8 * step)
        )
        batches.append(RecordedBatch("rl", step, 1.0, rollouts))
    again = Replayer(batches, RESOURCES)
    return [RecordedBatch(b.stage, b.step, again(b, truth).makespan_s, b.rollouts) for b in batches]


def test_an_engine_that_the_model_can_describe_is_found_again():
    truth = EngineModel(1 << 20, 0.02, 1.5e-3, 0.0, 4_000.0)
    found = predict(recorded(9, truth), RESOURCES, truth.kv_tokens)
    assert [each.use for each in found.predictions].count(Use.predicted) == 5
    assert max(abs(each.error) for each in found.predictions if each.use is Use.predicted) < 0.05


def test_the_least_squares_solution_has_no_negative_constant():
    random = np.random.default_rng(0)
    rows = random.random((20, 4))
    assert non_negative(rows, rows @ np.array([1, 0, 2, 0])) == pytest.approx([1, 0, 2, 0], abs=1e-9)
    assert non_negative(rows, rows @ np.array([1, -1, 2, -0.5])).min() == 0


@pytest.fixture
def run_folder(tmp_path):
    """A run of as many RL steps as asked for, its engine's KV cache told."""

    def make(steps: int) -> RunFolder:
        recipe = Recipe.model_validate(
            {
                "name": "replayed",
                "model": {"kind": "tiny-qwen3"},
                "stages": [{"name": "rl", "kind": "rl", "steps": 9, "max_response_tokens": 64}],
                "rollout": {"kind": "scripted"},
            }
        )
        folder = RunFolder.create(tmp_path / "run", new_job(recipe, "run-1"))
        with EventLog(folder, folder.next_attempt()) as log:
            plan = StagePlan(name="rl", kind="rl", steps=9)
            log.append(RunStarted(run_id="run-1", recipe="replayed", digest="", stages=(plan,)))
            log.append(EngineLoad(stage="rl", step=1, engine="engine-0", metrics={"capacity_tokens": 5000.0}))
            for step in range(1, steps + 1):
                path = folder.trajectories(1, "rl", step)
                write_trajectories(path, [trajectory(step, replica) for replica in range(6)])
                name = folder.relative(path)
                log.append(StepFinished(stage="rl", step=step, trajectories=name, seconds={"sampling": 2.0}))
        return folder

    return make


def test_a_run_folder_is_replayed(run_folder):
    found = replay(run_folder(5).path)
    assert [each.use for each in found.predictions] == [Use.warm_up, Use.calibrated] + [Use.predicted] * 3
    assert found.engine.kv_tokens == 5000
    assert found.error == pytest.approx(0, abs=0.05)
    assert found.as_dict()["reached"]


def test_a_run_of_one_step_cannot_be(run_folder):
    with pytest.raises(NothingToReplay, match="wants two finished RL steps at least, the run has 1"):
        replay(run_folder(1).path)
