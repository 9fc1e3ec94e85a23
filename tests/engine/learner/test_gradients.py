"""Gradients are those of a plain loop: ZeRO 0 to 3, fp32 and bf16, one rank and two, passes of unequal size.

DeepSpeed has had stages that kept only the last pass's gradient, or dropped one. So besides the sum, the share of every
single sample in it is found by least squares: 1 where it went in once, 0 where it was dropped.
"""

import math
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from engine.learner.packing import pack_batch, trained_tokens
from engine.learner.policy_model import ModelSettings, PolicyModel
from tests.engine.learner.matrix import (
    CASES,
    CHUNK_TOKENS,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    PASS_TOKENS,
    SCALES,
    TEMPERATURE,
    Case,
    Found,
    batches,
    run,
)
from tests.engine.learner.support import ROOT, plain_logp, plain_model, plain_rl_loss, relative_error

pytestmark = pytest.mark.e2e

FP32 = 1e-5
"""Relative difference by weight, 2-norms."""

BF16 = 0.1
"""The same between bf16 passes that round in other places (one sample alone, several packed): numbers have 8 bits, and
some weights (norms of keys) get nearly nothing. Without such a difference bf16 is held to ``FP32`` too."""

Tensors = Mapping[str, torch.Tensor]


@pytest.fixture(scope="module")
def one_rank(model_folder: Path) -> dict[Case, Found]:
    return {case: run(case, model_folder) for case in CASES}


@pytest.fixture(scope="module")
def two_ranks(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Found]:
    folder = tmp_path_factory.mktemp("two-ranks")
    arguments = [str(folder / "store"), str(model_folder), str(folder)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.engine.learner.matrix", str(rank), *arguments],
                    cwd=ROOT,
                    stderr=stack.enter_context((folder / f"rank-{rank}.log").open("wb")),
                )
            )
            for rank in (0, 1)
        ]
        try:
            statuses = [rank.wait(timeout=600) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    assert statuses == [0, 0], [(folder / f"rank-{rank}.log").read_text()[-2000:] for rank in (0, 1)]
    return {case: Found.read(folder, case) for case in CASES}


@pytest.fixture(scope="module", params=["one rank", "two ranks"])
def matrix(request: pytest.FixtureRequest) -> dict[Case, Found]:
    found: dict[Case, Found] = request.getfixturevalue(request.param.replace(" ", "_"))
    return found


@pytest.fixture(scope="module")
def plain(model_folder: Path) -> dict[str, list[dict[str, torch.Tensor]]]:
    """By number format: each sample's own part of the gradient, in fp32."""
    return {precision: parts_of_gradient(model_folder, precision) for precision in ("fp32", "bf16")}


def parts_of_gradient(model_folder: Path, precision: str) -> list[dict[str, torch.Tensor]]:
    model = plain_model(model_folder, {"fp32": torch.float32, "bf16": torch.bfloat16}[precision])
    batch = next(batches())
    tokens = sum(sum(sample.trained) for sample in batch)
    parts = []
    for sample in batch:
        model.zero_grad()
        (plain_rl_loss(model, [sample], TEMPERATURE) * sum(sample.trained) / tokens).backward()
        parts.append({name: weight.grad.float() for name, weight in model.named_parameters()})
    return parts


def passes_by_hand(model_folder: Path, precision: str, world: int) -> dict[str, torch.Tensor]:
    """The learner's own model and passes without DeepSpeed: gradients of all ranks' passes added up in fp32."""
    model = PolicyModel(model_folder, ModelSettings(precision=precision, logits_chunk_tokens=CHUNK_TOKENS))
    batch = next(batches())
    parts = []
    for pack in (pack for rank in range(world) for pack in pack_batch(batch, PASS_TOKENS, rank=rank, world=world)):
        model.zero_grad()
        logp_T = model(pack, TEMPERATURE).logp_T
        (-(logp_T - logp_T.detach()).exp() * pack.advantage_T / trained_tokens(batch)).sum().backward()
        parts.append({name: w.grad.float() for name, w in model.causal.named_parameters() if w.grad is not None})
    return summed(parts)


def summed(parts: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}


def flat(tensors: Tensors) -> torch.Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]).double()


each_case = pytest.mark.parametrize("case", CASES, ids=str)


def test_the_passes_are_uneven_and_a_rank_has_a_filler() -> None:
    first, second = (pack_batch(next(batches()), PASS_TOKENS, rank=rank, world=2) for rank in (0, 1))
    counts = [[len(pack.bounds) - 1 for pack in packs] for packs in (first, second)]
    assert len(first) == len(second) > 1
    assert len(set(counts[0])) > 1 or len(set(counts[1])) > 1
    assert any(pack.tokens == 0 for pack in [*first, *second])


@each_case
def test_gradients_are_those_of_a_plain_loop(
    case: Case, matrix: dict[Case, Found], plain: dict[str, list[dict[str, torch.Tensor]]]
) -> None:
    tolerance = FP32 if case.precision == "fp32" else BF16
    assert relative_error(matrix[case].gradients, summed(plain[case.precision])) < tolerance


@each_case
@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_are_the_sum_of_the_passes_in_fp32(
    case: Case, ranks: int, one_rank: dict[Case, Found], two_ranks: dict[Case, Found], model_folder: Path
) -> None:
    """In bf16 too: accumulation and reduction add no rounding of their own to that of the passes."""
    found = (one_rank if ranks == 1 else two_ranks)[case]
    assert relative_error(found.gradients, passes_by_hand(model_folder, case.precision, ranks)) < FP32


@each_case
def test_every_sample_is_in_the_gradient_once(
    case: Case, matrix: dict[Case, Found], plain: dict[str, list[dict[str, torch.Tensor]]]
) -> None:
    parts = torch.stack([flat(part) for part in plain[case.precision]], dim=1)
    shares = torch.linalg.lstsq(parts, flat(matrix[case].gradients)[:, None]).solution[:, 0]
    assert shares.tolist() == pytest.approx([1.0] * parts.shape[1], abs=1e-4 if case.precision == "fp32" else 0.03)


@each_case
def test_the_norm_before_clipping_is_the_gradients(case: Case, matrix: dict[Case, Found]) -> None:
    found = matrix[case]
    assert found.updates[0]["grad_norm"] > MAX_GRAD_NORM  # or clipping would go untested
    assert found.updates[0]["grad_norm"] == pytest.approx(flat(found.gradients).norm().item(), rel=1e-5)


@each_case
def test_a_loss_that_is_not_finite_on_one_rank_changes_no_bit_on_any(case: Case, matrix: dict[Case, Found]) -> None:
    assert matrix[case].spoiled["skipped"] == 1.0
    assert matrix[case].changed_by_spoiled == []
    assert [update["skipped"] for update in matrix[case].updates] == [0.0] * len(SCALES)


@each_case
def test_what_is_not_finite_on_one_rank_is_seen_in_the_metrics_of_all(case: Case, matrix: dict[Case, Found]) -> None:
    spoiled = matrix[case].spoiled
    assert math.isinf(spoiled["loss"])
    assert math.isnan(spoiled["grad_norm"])
    assert math.isnan(spoiled["logprob_gap_max"])
    assert math.isnan(spoiled["logprob_gap_mean"])


@pytest.mark.parametrize("case", [case for case in CASES if case.precision == "fp32"], ids=str)
def test_steps_are_those_of_torch_adamw_that_never_saw_the_spoiled_batch(
    case: Case, matrix: dict[Case, Found], model_folder: Path
) -> None:
    model = plain_model(model_folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for batch, scale, update in zip(batches(), SCALES, matrix[case].updates, strict=True):
        optimizer.zero_grad()
        loss = plain_rl_loss(model, batch, TEMPERATURE)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * scale
        optimizer.step()
        assert update["loss"] == pytest.approx(loss.item(), rel=1e-5)
    theirs = {name: weight.detach() for name, weight in model.named_parameters()}
    assert relative_error(matrix[case].masters, theirs) < 1e-5


@each_case
def test_two_ranks_do_what_one_does(
    case: Case, one_rank: dict[Case, Found], two_ranks: dict[Case, Found], model_folder: Path
) -> None:
    """Metrics of all ranks together, weights after three steps, and log-probabilities in the caller's order."""
    one, two = one_rank[case], two_ranks[case]
    tolerance = 1e-5 if case.precision == "fp32" else 1e-2
    for ours, theirs in zip(two.updates, one.updates, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            assert ours[name] == pytest.approx(theirs[name], rel=tolerance, abs=tolerance), name
    assert relative_error(two.masters, one.masters) < (1e-5 if case.precision == "fp32" else 1e-2)
    for ours_row, theirs_row in zip(two.logprobs, one.logprobs, strict=True):
        assert ours_row == pytest.approx(theirs_row, abs=1e-5 if case.precision == "fp32" else 0.1)


def test_logprobs_of_two_ranks_are_those_of_a_plain_loop(two_ranks: dict[Case, Found], model_folder: Path) -> None:
    model = plain_model(model_folder)
    for row, sample in zip(two_ranks[Case("fp32", 3)].logprobs, next(batches()), strict=True):
        assert row == pytest.approx([value.item() for value in plain_logp(model, sample, TEMPERATURE)], abs=1e-5)
