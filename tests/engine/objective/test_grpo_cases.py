"""Every row of ``cases/grpo.jsonl``: what others got wrong in GRPO, and what is right.

One function a row, named after it, so that a new row without one fails by its id.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.downsample import Candidate, Roc
from engine.downsample.drawing import draw_weighted
from engine.downsample.inclusion import inclusion_probabilities
from engine.downsample.quotas import class_quotas
from engine.downsample.roc import draw_weight, error_penalty, format_penalty
from engine.learner.base import Sample
from engine.learner.packing import Pack, pack_batch
from engine.objective.advantage import group_advantages
from engine.objective.base import LossTerms, Tokens
from engine.objective.grpo import Grpo
from engine.objective.importance import truncated_weights
from engine.objective.kl import k1, k2, k3
from engine.objective.logprob import log_softmax
from engine.objective.normalisation import token_mean
from engine.reward import count_answer_tags
from engine.rollout.toolcalls import parse_tool_calls
from engine.rollout.tools.python import PYTHON_TOOL

CASES = Path(__file__).parents[2] / "cases" / "grpo.jsonl"
ROWS: dict[str, dict[str, Any]] = {row["id"]: row for row in map(json.loads, CASES.read_text("utf-8").splitlines())}

# A row that no function below checks must be named here, with who answers for it.
HANDLED_ELSEWHERE = {
    "C011": "stage: a group's id is unique per draw of a problem",
    "C041": "contract and platform: metrics that are not finite",
    "C047": "recipe: top-p and top-k are refused for RL",
    "C049": "recipe: a cap without log-probabilities is refused",
    "C069": "learner: no group is cut in two",
    "C071": "stage: every group rejected",
    "C073": "stage: groups that complete late",
    "C075": "scheduler: how much to over-sample",
    "C077": "stage: optimizer and reference are reset together",
    "C079": "filter stage: only full marks are dropped",
}

CHECKS: dict[str, Callable[[dict[str, Any], Any], None]] = {}


def case(check: Callable[[dict[str, Any], Any], None]) -> Callable[[dict[str, Any], Any], None]:
    """Registers ``c001_why`` for row C001."""
    CHECKS[check.__name__.split("_")[0].upper()] = check
    return check


def test_every_row_of_the_case_file_has_somebody_who_answers_for_it() -> None:
    assert not CHECKS.keys() & HANDLED_ELSEWHERE.keys()
    assert CHECKS.keys() | HANDLED_ELSEWHERE.keys() == ROWS.keys()


@pytest.mark.parametrize("row_id", sorted(ROWS.keys() - HANDLED_ELSEWHERE.keys()))
def test_case(row_id: str) -> None:
    CHECKS[row_id](ROWS[row_id]["input"], ROWS[row_id]["expected"])


def f64(values: list[Any]) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


def packed(samples: list[Sample]) -> Pack:
    (pack,) = pack_batch(samples, max_tokens=1000)
    return pack


def response(trained: list[Any], *, advantage: float = 0.0, logprobs: tuple[float, ...] = ()) -> Sample:
    """One prompt token and a response. What is not trained never reaches an objective."""
    told = (0.0, *logprobs) if logprobs else ()
    return Sample(ids=range(1 + len(trained)), trained=[False, *map(bool, trained)], logprobs=told, advantage=advantage)


def mean_loss(terms: LossTerms, tokens: int) -> float:
    return token_mean(terms.sum, tokens).item()


def rollout(index: int, *, right: bool) -> Candidate:
    return Candidate(index, float(right), 1, 0, 1, 1, 2, u=(index + 1) / 64)


# Advantages


@case
def c001_equal_rewards_give_zeros(given: dict[str, Any], expected: Any) -> None:
    assert group_advantages(f64(given["rewards"])).tolist() == expected["advantages"]


@case
def c003_a_group_of_one_gives_zero(given: dict[str, Any], expected: Any) -> None:
    for ddof in (0, 1):
        assert group_advantages(f64(given["rewards"]), ddof=ddof).tolist() == expected["advantages"]


@case
def c005_population_std_is_the_default(given: dict[str, Any], expected: Any) -> None:
    for options in ({}, {"ddof": given["ddof"], "eps": given["eps"]}):
        advantage_N = group_advantages(f64(given["rewards"]), **options)
        assert advantage_N.tolist() == pytest.approx(expected["advantages"], abs=1e-5)


@case
def c007_groups_are_formed_by_id(given: dict[str, Any], expected: Any) -> None:
    """No function of ours sees more than one group, so that places in a batch cannot matter."""
    found = dict.fromkeys(range(len(given["rewards"])), 0.0)
    for uid in set(given["uids"]):
        places = [place for place, each in enumerate(given["uids"]) if each == uid]
        group = f64([given["rewards"][place] for place in places])
        advantages = group_advantages(group, ddof=given["ddof"], eps=given["eps"]).tolist()
        found.update(zip(places, advantages, strict=True))
    assert list(found.values()) == pytest.approx(expected["advantages"], abs=1e-6)


@case
def c009_a_reward_that_is_no_number_is_an_error(given: dict[str, Any], expected: Any) -> None:
    with pytest.raises(ValueError, match=r"reward is not finite: \[1.0, 0.0, nan, 0.0\]"):
        group_advantages(f64(given["rewards"]))


@case
def c013_broadcast_then_mask(given: dict[str, Any], expected: Any) -> None:
    pack = packed([response(given["mask"], advantage=given["sequence_advantage"])])
    advantages = torch.zeros(len(given["mask"]))
    advantages[pack.place_T] = pack.advantage_T  # with one prompt token, a token's place is that of its predictor
    assert advantages.tolist() == pytest.approx(expected["token_advantages"])


@case
def c015_every_sequence_gets_its_own_score_up_to_its_own_end(given: dict[str, Any], expected: Any) -> None:
    """We have no reward matrix: a pack has no padding. Each sequence's last token is the matrix's."""
    pairs = zip(given["valid_lengths"], given["rewards"], strict=True)
    pack = packed([response([1] * length, advantage=reward) for length, reward in pairs])
    matrix = torch.zeros(len(given["rewards"]), given["response_len"])
    for row, length in enumerate(given["valid_lengths"]):
        score_T = pack.advantage_T[pack.row_T == row]
        assert len(score_T) == length
        matrix[row, length - 1] = score_T[-1]
    assert matrix.tolist() == expected["reward_matrix"]


@case
def c017_an_empty_response_has_no_token_to_score(given: dict[str, Any], expected: Any) -> None:
    (length,), (reward,) = given["valid_lengths"], given["rewards"]
    assert pack_batch([response([1] * length, advantage=reward)], max_tokens=1000) == []
    assert Grpo()(Tokens(f64([]), f64([]))).sum == expected["row_sum"]


# Loss


@case
def c019_token_mean_weighs_tokens_alike(given: dict[str, Any], expected: Any) -> None:
    mask = torch.tensor(given["mask"])
    loss_sum = (torch.tensor(given["loss"], dtype=torch.float64) * mask).sum()
    assert token_mean(loss_sum, int(mask.sum())).item() == pytest.approx(expected["value"], abs=1e-6)


@case
def c021_a_constant_divisor_is_token_mean_with_another_count(given: dict[str, Any], expected: Any) -> None:
    loss = torch.tensor(given["loss"], dtype=torch.float64)
    loss_sum = (loss * torch.tensor(given["mask"])).sum()
    assert token_mean(loss_sum, given["divisor"] * len(loss)).item() == pytest.approx(expected["value"])


@case
def c023_the_count_is_that_of_all_ranks(given: dict[str, Any], expected: Any) -> None:
    ranks = given["ranks"]
    tokens = sum(rank["tokens"] for rank in ranks)
    shares = [token_mean(torch.tensor(rank["loss_sum"]), tokens, world=len(ranks)).item() for rank in ranks]
    assert sum(shares) / len(ranks) == pytest.approx(expected["value"])  # the mean that data parallelism takes


@case
def c025_masked_samples_leave_the_denominator_too(given: dict[str, Any], expected: Any) -> None:
    pairs = zip(given["lengths"], given["truncated"], strict=True)
    pack = packed([response([not cut] * length, advantage=-1.0) for length, cut in pairs])
    assert pack.tokens == expected["denominator"]
    terms = Grpo()(Tokens(torch.zeros(pack.tokens), pack.advantage_T))
    assert mean_loss(terms, pack.tokens) == pytest.approx(expected["value"])


@case
def c027_shapes_that_would_broadcast_are_refused(given: dict[str, Any], expected: Any) -> None:
    values, mask = torch.zeros(given["shape_values"]), torch.zeros(given["shape_mask"])
    assert Tokens(values, mask).advantage_T is mask
    with pytest.raises(ValueError, match="shapes differ"):
        Tokens(values.unsqueeze(-1), mask)


def _objective(given: dict[str, Any]) -> float:
    grpo = Grpo(clip_low=given["eps_low"], clip_high=given["eps_high"])
    return -grpo(Tokens(f64([math.log(given["ratio"])]), f64([given["advantage"]]), old_T=f64([0]))).sum.item()


@case
def c029_a_gain_is_clipped_above(given: dict[str, Any], expected: Any) -> None:
    assert _objective(given) == pytest.approx(expected["objective"])


@case
def c031_a_loss_is_not_clipped_above(given: dict[str, Any], expected: Any) -> None:
    assert _objective(given) == pytest.approx(expected["objective"])


@case
def c033_however_large_the_ratio(given: dict[str, Any], expected: Any) -> None:
    assert _objective(given) == pytest.approx(expected["objective"])


# Numerics


@case
def c035_kl_of_far_apart_policies_is_finite(given: dict[str, Any], expected: Any) -> None:
    for estimator in (k1, k2, k3):
        logp_T = torch.tensor([given["logp"]], dtype=torch.float32, requires_grad=True)
        kl = estimator(logp_T, torch.tensor([given["ref_logp"]])).sum()
        (gradient_T,) = torch.autograd.grad(kl, logp_T)
        assert kl.isfinite()
        assert gradient_T.isfinite().all()


@case
def c037_masked_infinities_are_not_computed_with(given: dict[str, Any], expected: Any) -> None:
    """Masked places are left out, not multiplied by 0."""
    kept = torch.tensor(given["mask"], dtype=torch.bool)
    for estimator in (k1, k2, k3):
        kl_T = estimator(f64(given["logp"])[kept], f64(given["ref_logp"])[kept])
        assert kl_T.tolist() == [expected["mean_kl"]]


@case
def c039_a_masked_place_cannot_spoil_the_backward_pass(given: dict[str, Any], expected: Any) -> None:
    logp_T = torch.tensor(given["logp"], requires_grad=True)
    kept = torch.tensor(given["mask"], dtype=torch.bool)
    old_T = torch.tensor(given["old_logp"])[kept]
    terms = Grpo()(Tokens(logp_T[kept], torch.full_like(old_T, given["advantage"]), old_T=old_T))
    (gradient_T,) = torch.autograd.grad(terms.sum, logp_T)
    assert terms.sum.isfinite()
    assert gradient_T.tolist() == [-1.0, 0.0]


@case
def c043_temperature_zero_is_refused(given: dict[str, Any], expected: Any) -> None:
    with pytest.raises(ValueError, match=r"temperature is 0.0, expected a finite number over 0"):
        log_softmax(torch.zeros(1, 3), given["temperature"])


# Sampler against learner


@case
def c045_truncated_weights_have_no_lower_cap(given: dict[str, Any], expected: Any) -> None:
    weight_T = truncated_weights(f64([given["logp_train"]]), f64([given["logp_rollout"]]), cap=given["cap"])
    assert weight_T.item() == pytest.approx(expected["weight"], abs=1e-6)


@case
def c051_tool_tokens_are_not_in_the_gap(given: dict[str, Any], expected: Any) -> None:
    pack = packed([response(given["mask"], logprobs=tuple(given["gap"]))])
    terms = Grpo()(Tokens(torch.zeros(pack.tokens), pack.advantage_T, sampler_T=pack.sampler_T))
    assert terms.sums["logprob_gap_mean"].item() / pack.tokens == pytest.approx(expected["mean_gap"])


# Resampling on Correct


@case
def c053_cleaner_right_ones_are_kept_more_often(given: dict[str, Any], expected: Any) -> None:
    weights = [draw_weight(each["penalty"], eps=0.05) for each in given["positives"]]
    clean, _, middling, *_, dirty = inclusion_probabilities(weights, given["keep"])
    assert clean > middling > dirty > 0
    draws = draw_weighted([rollout(each["id"], right=True) for each in given["positives"]], weights, 3)
    assert sum(each.kept for each in draws.values()) == 3


@case
def c055_no_place_is_lost_to_rounding(given: dict[str, Any], expected: Any) -> None:
    quotas = class_quotas(given["correct"], given["wrong"], given["keep"], min_per_class=1)
    assert sum(quotas) == expected["kept_total"]
    candidates = [rollout(index, right=index < given["correct"]) for index in range(given["total"])]
    assert len(Roc().select(candidates, given["keep"]).kept) == expected["kept_total"]


@case
def c057_all_wrong_would_fill_its_quota_and_is_dropped(given: dict[str, Any], expected: Any) -> None:
    assert sum(class_quotas(given["correct"], given["wrong"], given["keep"], 1)) == expected["kept_total"]
    candidates = [rollout(index, right=False) for index in range(given["total"])]
    selection = Roc().select(candidates, given["keep"])
    assert (selection.outcome, selection.kept) == ("all_wrong", ())


@case
def c059_words_in_an_output_are_no_error(given: dict[str, Any], expected: Any) -> None:
    """Candidates carry counts of structured statuses; no text reaches the penalty."""
    assert error_penalty(calls=len(given["tool_outputs"]), errors=0) == expected["error_ratio"]


@case
def c061_a_tool_response_the_policy_made_up_is_no_call(given: dict[str, Any], expected: Any) -> None:
    calls = parse_tool_calls(given["assistant_text"], [PYTHON_TOOL])
    assert len(calls) == given["real_tool_calls"]
    assert error_penalty(calls=len(calls), errors=0) == expected["error_ratio"]


@case
def c063_no_answer_tag(given: dict[str, Any], expected: Any) -> None:
    assert format_penalty(*count_answer_tags("I see."), given["turns"]) == expected["format_penalty"]


@case
def c065_surplus_answer_tags(given: dict[str, Any], expected: Any) -> None:
    tags = count_answer_tags("<answer>1</answer>" * given["answer_tags"])
    assert format_penalty(*tags, given["turns"]) == expected["format_penalty"]


@case
def c067_unbalanced_answer_tags(given: dict[str, Any], expected: Any) -> None:
    tags = count_answer_tags("<answer>" * given["open_tags"] + "</answer>" * given["close_tags"])
    assert tags == (given["open_tags"], given["close_tags"])
    assert format_penalty(*tags, turns=3) == expected["format_penalty"]
