"""One RL step with a recording learner and given rollouts: the order of things, what is learned from, what is told.

Holds the rows of ``tests/cases/grpo.jsonl`` that concern steps, batches and settings. Refill: ``test_rounds.py``; how
groups become updates: ``test_step_updates.py``; updates that were skipped: ``test_skips.py``.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from engine.contract.events import CheckpointSaved, GroupFinished, LogLine, PhaseStarted, StepFinished
from engine.data.curriculum import unsolved
from engine.downsample.record import GroupRecord, recompute
from engine.stages import commit, reinforce
from engine.stages.reinforce import tell_reset
from engine.stages.sampling import Ask
from engine.stages.updates import PolicyMismatch
from tests.engine.stages.bench import Bench, recipe

MakeBench = Callable[..., Bench]
CASES = Path(__file__).resolve().parents[2] / "cases" / "grpo.jsonl"


def case(name: str) -> Any:
    return next(row for row in map(json.loads, CASES.read_text().splitlines()) if row["id"] == name)


def mixed(ask: Ask) -> bool:
    return ask.replica % 2 == 0


async def test_the_order_of_a_step(bench: MakeBench) -> None:
    """Update, push, checkpoint, and only then the step is told (platform F087, ADR 3)."""
    found = bench(mixed)
    await found.step()
    phases = [str(e.body.phase) for e in found.events() if isinstance(e.body, PhaseStarted)]
    assert phases == ["sampling", "scoring", "downsampling", "update", "push", "checkpoint"]
    last = [type(e.body) for e in found.events()][-2:]
    assert last == [CheckpointSaved, StepFinished]
    assert found.rollouts.published == [1]


async def test_only_kept_rollouts_are_learned_from(bench: MakeBench) -> None:
    found = bench(mixed)
    body = await found.step()
    (part,) = found.learner.parts
    assert len(part) == 4
    assert body.metrics["kept_rollouts"] == 4
    assert {round(sample.advantage, 3) for sample in part} == {1.0, -1.0}
    assert all(not sample.old_logprobs for sample in part), "with one update the policy itself is the behaviour policy"


async def test_every_selection_is_on_record_and_can_be_decided_again(bench: MakeBench) -> None:
    found = bench(lambda ask: mixed(ask) or ask.group.endswith("/0"))
    body = await found.step()
    records = [GroupRecord.from_dict(line) for line in found.lines("selections/rl/step-00001.jsonl")]
    assert [(record.group, record.selection.outcome) for record in records] == [
        ("rl/1/0", "all_right"),
        ("rl/1/1", "kept"),
    ]
    assert all(recompute(record) == record.selection for record in records)
    kept = {(t.group, t.replica) for t in found.trajectories(body) if t.kept}
    assert kept == {(record.group, index) for record in records for index in record.selection.kept}


async def test_what_a_stage_carries_over_is_in_its_checkpoint(bench: MakeBench) -> None:
    found = bench(mixed)
    await found.step()
    stored = commit.latest(found.folder, "rl")
    assert stored is not None
    lengths = found.rollouts.lengths.as_dict()
    assert stored.pending == {"cursor": 2, "skips": 0, "draws": [], "response_lengths": lengths}


@pytest.mark.parametrize(("right", "outcome"), [(True, "all_right"), (False, "all_wrong")])
async def test_c071_a_step_without_variance_is_recorded_as_empty(bench: MakeBench, right: bool, outcome: str) -> None:
    found = bench(lambda _: right)
    body = await found.step()
    assert found.learner.parts == []
    assert body.metrics[outcome] == 2
    assert (body.metrics["empty"], body.metrics["kept_groups"], body.metrics["lr"]) == (1, 0, 0)
    assert body.metrics["logprob_gap_max"] == pytest.approx(1e-6), "sampler and learner are compared all the same"
    assert len(found.trajectories(body)) == 8
    assert commit.latest(found.folder, "rl") is not None


async def test_weights_that_did_not_change_keep_their_version_and_are_not_pushed(bench: MakeBench) -> None:
    found = bench(lambda _: True)
    await found.step()
    assert (found.context.version, found.rollouts.published) == (0, [])


async def test_rollouts_that_we_spoiled_are_counted_and_never_scored(bench: MakeBench) -> None:
    """N' = 3 of 4 keeps floor(3 * 2 / 4) = 1: no variance is left in one rollout, so the group leaves the loss."""
    found = bench(lambda ask: None if ask.replica == 3 else ask.replica == 0)
    body = await found.step()
    assert body.metrics["left_out"] == 2
    assert body.metrics["roc_emptied"] == 2
    assert {t.replica for t in found.trajectories(body)} == {0, 1, 2}


@pytest.mark.parametrize("gap", [1e-3, float("nan")])
async def test_training_on_samples_of_another_policy_is_refused(bench: MakeBench, gap: float) -> None:
    found = bench(mixed, gap=gap)
    with pytest.raises(PolicyMismatch, match="does not serve the learner's weights"):
        await found.step()
    assert not [e for e in found.events() if isinstance(e.body, StepFinished)]


async def test_the_same_is_refused_without_an_update(bench: MakeBench) -> None:
    with pytest.raises(PolicyMismatch):
        await bench(lambda _: True, gap=1e-3).step()


@pytest.mark.parametrize("side", ["learner", "rollout"])
async def test_with_bf16_on_either_side_the_gap_is_a_metric_and_no_error(bench: MakeBench, side: str) -> None:
    body = await bench(mixed, gap=0.05, **{side: {"precision": "bf16"}}).step()
    assert body.metrics["logprob_gap_max"] == 0.05


async def test_c069_no_group_is_cut_and_c073_none_is_lost(bench: MakeBench) -> None:
    sizes = case("C069")["input"]["groups"]

    def right(ask: Ask) -> bool | None:
        place = int(ask.group.rsplit("/", 1)[1])
        return None if ask.replica >= sizes[place] else mixed(ask)

    found = bench(right, problems_per_step=3, rollouts_per_problem=8, keep_per_problem=4, updates_per_step=2)
    body = await found.step()
    groups = [e.body for e in found.events() if isinstance(e.body, GroupFinished)]
    assert sorted(g.rollouts for g in groups) == sorted(sizes)
    assert len(found.learner.samples) == sum(g.kept for g in groups)
    assert all(g.kept for g in groups)
    kept = [t for t in found.trajectories(body) if t.kept]
    for part in found.learner.parts:
        assert sum(sample.advantage for sample in part) == pytest.approx(0, abs=1e-9), "as in whole groups"
    assert sorted(s.advantage for s in found.learner.samples) == sorted(t.advantage for t in kept)


@pytest.mark.parametrize(
    ("kl_beta", "told"),
    [(0.0, "reference policy: none, as kl_beta is 0"), (0.1, "reference policy: the policy of now")],
)
def test_c077_a_new_stage_resets_optimizer_and_reference_or_neither(
    bench: MakeBench, kl_beta: float, told: str
) -> None:
    found = bench(mixed, kl_beta=kl_beta)
    tell_reset(found.context, found.stage, first=1)
    tell_reset(found.context, found.stage, first=3)
    new, gone_on = [e.body.message for e in found.events() if isinstance(e.body, LogLine)]
    assert "optimizer state and warm-up begin anew" in new
    assert told in new
    assert gone_on == "rl: goes on at step 3 with its optimizer state and its reference policy"


@pytest.mark.parametrize(
    ("fields", "weighed", "referenced"),
    [
        ({}, False, False),
        ({"kl_beta": 0.1}, False, True),
        ({"learner": {"precision": "bf16"}}, True, False),
    ],
)
def test_the_reference_is_the_policy_that_the_stage_starts_from_and_only_loaded_for_a_kl_term(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], weighed: bool, referenced: bool
) -> None:
    found = bench(mixed, **fields)
    asked: dict[str, Any] = {}
    monkeypatch.setattr(reinforce, "open_rl_learner", lambda *places, **settings: asked.update(settings))
    reinforce.open_learner(found.context, found.stage)
    assert asked == {
        "sampler_weight": weighed,
        "reference": found.context.policy if referenced else None,
        "logs": found.folder.logs,
    }


def test_c041_a_metric_that_is_no_number_stays_valid_json() -> None:
    metrics = {name: float(value) for name, value in case("C041")["input"]["metrics"].items()}
    body = StepFinished(stage="rl", step=1, metrics=metrics)
    stored = json.loads(body.model_dump_json())
    assert stored["metrics"] == {"loss": None, "grad_norm": None}
    assert stored["non_finite"] == {"loss": "nan", "grad_norm": "inf"}


@pytest.mark.parametrize("field", ["top_p", "top_k", "rollout_logprobs", "truncated_weight_cap"])
def test_c047_c049_what_would_bias_the_ratio_cannot_be_set(field: str) -> None:
    """Truncated sampling is refused in RL, and log-probabilities are always asked for: there is no switch."""
    with pytest.raises(ValidationError, match=field):
        recipe(**{field: 0.9})


def test_c079_only_full_marks_are_dropped() -> None:
    row = case("C079")
    assert unsolved(row["input"]["rates"]) == row["expected"]["kept"]
