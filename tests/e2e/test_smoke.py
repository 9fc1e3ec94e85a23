"""The whole line, real: vLLM samples, DeepSpeed learns, the sandbox executes. One run of the smoke recipe."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.contract.events import EvalFinished, Event, GroupFinished, RunFinished, StepFinished
from engine.contract.trajectory import Trajectory
from engine.sink.run_folder import RunFolder
from engine.sink.trajectories import read_trajectories

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SFT_STEPS, STEPS = 150, 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import subprocess
    import sys

    folder = tmp_path_factory.mktemp("smoke") / "run"
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "engine", "run", "engine/recipes/smoke.toml", "--out", str(folder)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "report.html" in done.stdout
    return folder


Events = Callable[[Path], list[Event]]


def steps(events: list[Event], stage: str) -> list[StepFinished]:
    return [e.body for e in events if isinstance(e.body, StepFinished) and e.body.stage == stage]


def third(bodies: list[StepFinished], name: str, *, last: bool) -> float:
    part = bodies[-len(bodies) // 3 :] if last else bodies[: len(bodies) // 3]
    return sum(body.metrics[name] or 0.0 for body in part) / len(part)


def trajectories(run: Path, body: StepFinished | EvalFinished) -> list[Trajectory]:
    assert body.trajectories is not None
    return read_trajectories(RunFolder.open(run).inside(body.trajectories))


def test_it_finishes_with_every_step_once(run: Path, events: Events) -> None:
    told = events(run)
    assert isinstance(told[-1].body, RunFinished)
    assert [body.step for body in steps(told, "sft")] == list(range(1, SFT_STEPS + 1))
    assert [body.step for body in steps(told, "rl")] == list(range(1, STEPS + 1))


def test_sft_learns(run: Path, events: Events) -> None:
    losses = steps(events(run), "sft")
    assert third(losses, "loss", last=True) < 0.3 * third(losses, "loss", last=False)


def test_rl_improves_reward_or_tool_errors(run: Path, events: Events) -> None:
    rl = steps(events(run), "rl")
    better_reward = third(rl, "reward", last=True) > third(rl, "reward", last=False)
    fewer_errors = third(rl, "tool_error_rate", last=True) < third(rl, "tool_error_rate", last=False)
    assert better_reward or fewer_errors


def test_sampler_and_learner_agree_on_every_steps_own_tokens(run: Path, events: Events) -> None:
    """After each push: the tokens of a step were sampled with the weights pushed before it."""
    gaps = [body.metrics["logprob_gap_max"] for body in steps(events(run), "rl")]
    assert len(gaps) == STEPS
    assert all(gap is not None and gap <= 1e-4 for gap in gaps), gaps


def test_events_and_trajectories_agree(run: Path, events: Events) -> None:
    told = events(run)
    for body in steps(told, "rl"):
        rollouts = trajectories(run, body)
        groups = {e.body.group: e.body for e in told if isinstance(e.body, GroupFinished) and e.body.step == body.step}
        assert {t.group for t in rollouts} == set(groups)
        for name, group in groups.items():
            members = [t for t in rollouts if t.group == name]
            assert len(members) == group.rollouts
            assert sum(t.kept for t in members) == group.kept
            assert sum((t.reward or 0) > 0 for t in members) == group.right
            assert sum(len(t.calls) for t in members) == group.tool_calls
            assert sum(t.tool_errors for t in members) == group.tool_errors
        mean_reward = sum(t.reward or 0.0 for t in rollouts) / len(rollouts)
        assert mean_reward == pytest.approx(body.metrics["reward"])


def test_kept_rollouts_have_advantages_that_cancel_and_masks_that_spare_the_tools(run: Path, events: Events) -> None:
    for body in steps(events(run), "rl"):
        rollouts = trajectories(run, body)
        for group in {t.group for t in rollouts if t.kept}:
            kept = [t for t in rollouts if t.group == group and t.kept]
            assert sum(t.advantage or 0.0 for t in kept) == pytest.approx(0.0, abs=1e-6)
        for t in rollouts:
            assert t.first_version <= t.last_version
            for turn in t.turns:
                assert all(t.sampled[turn.start : turn.end]) == (turn.role == "assistant")


def test_evaluations_hold_sampled_and_greedy_on_the_same_problems(run: Path, events: Events) -> None:
    evals = [e.body for e in events(run) if isinstance(e.body, EvalFinished)]
    assert [body.stage for body in evals] == ["eval-sft", "eval-rl"]
    asked = [{t.problem for t in trajectories(run, body)} for body in evals]
    assert asked[0] == asked[1]
    trained = {t.problem for body in steps(events(run), "rl") for t in trajectories(run, body)}
    assert not asked[0] & trained, "evaluation problems must not occur in training"
    assert all(body.metrics["pass@1_greedy"] is not None for body in evals)
