"""From kept groups to updates: groups dealt whole, each rollout once, other policies' log-probabilities where used."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract.trajectory import Trajectory
from engine.stages.sampling import Ask
from engine.stages.updates import deal, merged, sample_of
from tests.engine.stages.bench import Bench

MakeBench = Callable[..., Bench]
Make = Callable[..., Trajectory]


def mixed(ask: Ask) -> bool:
    return ask.replica % 2 == 0


def group(tokens: int) -> Any:
    """A group of one kept rollout with so many trained tokens."""
    return SimpleNamespace(kept=[SimpleNamespace(sampled=[True] * tokens)])


def loads(parts: list[list[Any]]) -> list[int]:
    return [sum(len(g.kept[0].sampled) for g in part) for part in parts]


def test_groups_are_dealt_largest_first_to_the_part_with_the_fewest_tokens() -> None:
    parts = deal([group(tokens) for tokens in (30, 70, 50, 40)], 2)
    assert [[len(g.kept[0].sampled) for g in part] for part in parts] == [[30, 70], [50, 40]]


def test_fewer_groups_than_updates_make_fewer_updates() -> None:
    assert len(deal([group(5), group(5)], 4)) == 2


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 500), min_size=1, max_size=24), count=st.integers(1, 6))
def test_every_group_is_in_one_part_and_no_part_is_a_group_heavier_than_needed(sizes: list[int], count: int) -> None:
    groups = [group(size) for size in sizes]
    parts = deal(groups, count)
    assert sorted(map(id, groups)) == sorted(id(g) for part in parts for g in part)
    assert all(parts)
    assert max(loads(parts)) - min(loads(parts)) <= max(sizes) + len(sizes)
    assert parts == deal(groups, count)


def test_a_sample_trains_on_sampled_tokens_only(make: Make) -> None:
    sample = sample_of(make(advantage=0.7))
    assert sample.ids == (1, 2, 3, 4, 5)
    assert sample.trained == (False, False, True, False, True)
    assert sample.logprobs == (0.0, 0.0, -0.5, 0.0, -0.25)
    assert sample.advantage == 0.7


async def test_with_several_updates_each_sample_is_seen_once_with_old_logprobs(bench: MakeBench) -> None:
    found = bench(mixed, updates_per_step=2)
    body = await found.step()
    assert [len(part) for part in found.learner.parts] == [2, 2]
    assert all(len(sample.old_logprobs) == len(sample.ids) for sample in found.learner.samples)
    assert found.learner.asked == ["policy"], "in one call, before the first update"
    assert body.metrics["tokens"] == 20


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, []),
        ({"sampler_weight": "on"}, ["policy"]),
        ({"learner": {"precision": "bf16"}}, ["policy"]),
        ({"rollout": {"precision": "bf16"}}, ["policy"]),
        ({"learner": {"precision": "bf16"}, "sampler_weight": "off"}, []),
    ],
)
async def test_weighing_the_sampler_brings_the_learners_own_old_logprobs(
    bench: MakeBench, settings: dict[str, Any], asked: list[str]
) -> None:
    """bf16 switches both on together (design: sampler against learner); one fp32 update needs neither."""
    found = bench(mixed, **settings)
    await found.step()
    assert found.learner.asked == asked
    assert all(bool(sample.old_logprobs) == bool(asked) for sample in found.learner.samples)


async def test_a_kl_term_brings_the_references_logprobs_of_what_is_learned_from(bench: MakeBench) -> None:
    found = bench(mixed, kl_beta=0.1, updates_per_step=2)
    await found.step()
    assert found.learner.asked == ["policy", "reference"]
    assert all(list(sample.reference_logprobs) == [-3.0] * 5 for sample in found.learner.samples)


async def test_without_a_kl_term_no_reference_is_asked(bench: MakeBench) -> None:
    found = bench(mixed)
    await found.step()
    assert not any(sample.reference_logprobs for sample in found.learner.samples)


async def test_the_loss_is_divided_by_the_updates_tokens_or_by_a_constant(bench: MakeBench) -> None:
    found = bench(mixed, updates_per_step=2, loss_denominator="constant")
    await found.step()
    assert found.learner.normalisers == [2 * 64, 2 * 64], "kept rollouts x max_response_tokens (Dr. GRPO)"


async def test_the_learner_divides_by_tokens_where_nothing_is_said(bench: MakeBench) -> None:
    found = bench(mixed)
    await found.step()
    assert found.learner.normalisers == [None]


async def test_few_informative_groups_make_a_smaller_step(bench: MakeBench) -> None:
    def one_group(ask: Ask) -> bool:
        return mixed(ask) if ask.group.endswith("/0") else True

    body = await bench(one_group, problems_per_step=4).step()
    assert body.metrics["lr"] == 2 * 1 / 4


async def test_the_schedule_and_the_caution_multiply(bench: MakeBench) -> None:
    found = bench(mixed, warmup_steps=4)
    assert (await found.step(2)).metrics["lr"] == 2 / 4


def test_metrics_of_a_step_are_means_maxima_and_sums_of_its_updates() -> None:
    first = {"loss": 1.0, "ratio_max": 1.5, "tokens": 10.0, "effective_tokens": 4.0}
    second = {"loss": 2.0, "ratio_max": 1.25, "tokens": 20.0, "effective_tokens": 6.0, "entropy_after_tool": 0.5}
    assert merged([first, second]) == {
        "loss": 1.5,
        "ratio_max": 1.5,
        "tokens": 30.0,
        "effective_tokens": 10.0,
        "entropy_after_tool": 0.5,
    }


@pytest.mark.parametrize("order", [(1.0, math.nan), (math.nan, 1.0)])
def test_a_maximum_that_is_no_number_stays_visible(order: tuple[float, float]) -> None:
    assert math.isnan(merged([{"ratio_max": value} for value in order])["ratio_max"])
