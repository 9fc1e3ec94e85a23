"""Updates on real DeepSpeed against plain loops: loss, gradients, optimizer step, masks, micro-batches, skipping."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from deepspeed.runtime.zero.muon import original_muon

from engine.learner.base import Sample
from engine.learner.deepspeed_learner import DeepSpeedLearner
from tests.engine.learner.support import (
    Open,
    first_gradients,
    plain_logp,
    plain_model,
    plain_rl_loss,
    plain_sft_loss,
    relative_error,
    samples,
    state_of,
    weights_of,
)

pytestmark = pytest.mark.e2e

ONE, THREE_UNEVEN = 8192, 85
"""Packed tokens: all seven samples together, or cut into packs of unequal numbers of samples."""

NO_CLIP = 1e9
"""A gradient norm that is never reached."""

Update = Callable[[DeepSpeedLearner], dict[str, float]]


def sft(batch: list[Sample]) -> Update:
    return lambda learner: learner.sft_update(batch, lr_scale=1.0).metrics


def rl(batch: list[Sample]) -> Update:
    return lambda learner: learner.rl_update(batch, lr_scale=1.0).metrics


@pytest.mark.parametrize("tokens", [ONE, THREE_UNEVEN])
def test_sft_loss_and_gradients_are_those_of_a_plain_loop(opening: Open, tokens: int) -> None:
    batch = samples(7)
    learner = opening.sft(tokens, max_grad_norm=NO_CLIP)
    metrics = sft(batch)(learner)
    model = plain_model(opening.folder)
    loss = plain_sft_loss(model, batch)
    loss.backward()
    theirs = gradients(model)
    assert relative_error(first_gradients(learner), theirs) < 1e-5
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert metrics["nll"] == pytest.approx(loss.item(), rel=1e-6)
    assert metrics["tokens"] == sum(sum(sample.trained) for sample in batch)
    assert metrics["grad_norm"] == pytest.approx(norm_of(theirs), rel=1e-5)


@pytest.mark.parametrize("old", [False, True], ids=["one update", "old logprobs"])
@pytest.mark.parametrize("tokens", [ONE, THREE_UNEVEN])
def test_rl_loss_and_gradients_are_those_of_a_plain_loop(opening: Open, tokens: int, old: bool) -> None:
    batch = near_policy(opening, samples(7, rl=True, old=old), temperature=0.7)
    learner = opening.rl(tokens, temperature=0.7, max_grad_norm=NO_CLIP)
    metrics = rl(batch)(learner)
    model = plain_model(opening.folder)
    loss = plain_rl_loss(model, batch, temperature=0.7)
    loss.backward()
    theirs = gradients(model)
    assert relative_error(first_gradients(learner), theirs) < 1e-5
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm_of(theirs), rel=1e-5)
    assert (metrics["clip_frac"] > 0.1) is old
    assert (metrics["ratio_max"] > 1.2) is old


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def norm_of(tensors: dict[str, torch.Tensor]) -> float:
    return math.sqrt(sum(tensor.square().sum().item() for tensor in tensors.values()))


def near_policy(opening: Open, batch: list[Sample], temperature: float) -> list[Sample]:
    """Old log-probabilities around the model's own, so that some ratios are clipped and some are not."""
    model = plain_model(opening.folder)
    shift = torch.Generator().manual_seed(0)
    moved = []
    for sample in batch:
        own = torch.stack(plain_logp(model, sample, temperature)).detach()
        near = own + 0.3 * torch.randn(own.shape, generator=shift)
        moved.append(replace(sample, old_logprobs=near.tolist() if sample.old_logprobs else ()))
    return moved


@pytest.mark.parametrize("tokens", [ONE, THREE_UNEVEN])
def test_rl_steps_are_those_of_torch_adamw(opening: Open, tokens: int) -> None:
    """Three steps through DeepSpeed at ZeRO 1, clipping and decay included, in which the rate changes."""
    learner = opening.rl(tokens, learning_rate=1e-3, max_grad_norm=0.05, weight_decay=0.1)
    model = plain_model(opening.folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for step, scale in enumerate([1.0, 0.5, 1.0]):
        batch = samples(7, seed=step, rl=True)
        norm = learner.rl_update(batch, lr_scale=scale).metrics["grad_norm"]
        assert norm > 0.05  # or clipping would go untested
        optimizer.zero_grad()
        plain_rl_loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.param_groups[0]["lr"] = 1e-3 * scale
        optimizer.step()
    theirs = {name: weight.detach() for name, weight in model.named_parameters()}
    assert relative_error(weights_of(learner), theirs) < 1e-6
    assert relative_error(weights_of(learner), weights_of(opening.rl())) > 1e-3


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_orthogonalizes_layer_matrices_and_adam_has_the_rest(opening: Open, precision: str) -> None:
    """One step moves a matrix by rate x a matrix with singular values near 1 (x sqrt(rows / columns) if tall)."""
    learner = opening.sft(on={"precision": precision}, learning_rate=4e-3, muon_learning_rate=0.02)
    before = masters_of(learner)
    sft(samples(7))(learner)
    for name, weight in masters_of(learner).items():
        moved = before[name] - weight
        if weight.ndim == 2 and "embed" not in name:
            singular = torch.linalg.svdvals(moved / 0.02) / max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
            assert singular[0] < 1.3
            assert singular[len(singular) // 2] > 0.5
        else:  # Adam's first step is its rate wherever there is a gradient
            assert moved.abs().max() == pytest.approx(4e-3, rel=1e-2)


def masters_of(learner: DeepSpeedLearner) -> dict[str, torch.Tensor]:
    """The fp32 weights that the optimizer steps on."""
    start = "master/causal."
    return {name.removeprefix(start): t for name, t in state_of(learner).items() if name.startswith(start)}


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_lora_trains_its_adapters_and_serves_their_product(opening: Open, tmp_path: Path, zero_stage: int) -> None:
    learner = opening.rl(on={"zero_stage": zero_stage}, trained={"kind": "lora", "rank": 4, "alpha": 8.0})
    before = weights_of(learner)
    rl(samples(5, rl=True))(learner)
    assert {name.split(".lora_")[0].rpartition(".")[2] for name in masters_of(learner)} == {
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    }
    after = weights_of(learner)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if "_proj" in name}
    learner.export(tmp_path)
    batch = samples(3)
    served = Open(tmp_path, opening.opened).rl().logprobs(batch)
    for ours, theirs in zip(learner.logprobs(batch), served, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_recomputing_activations_and_chunks_of_logits_change_nothing(opening: Open) -> None:
    batch = samples(5, rl=True)
    plain = opening.rl(max_grad_norm=NO_CLIP)
    sparing = opening.rl(
        on={"activation_checkpointing": True, "logits_chunk_tokens": 7, "zero_stage": 3}, max_grad_norm=NO_CLIP
    )
    assert rl(batch)(plain)["loss"] == pytest.approx(rl(batch)(sparing)["loss"], rel=1e-6)
    assert relative_error(first_gradients(sparing), first_gradients(plain)) < 1e-5


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_micro_batching_changes_nothing(opening: Open, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Muon's Newton-Schulz steps in float32 here: DeepSpeed's half precision turns the last bits of a gradient, in
    which sums of another order may differ on some CPUs, into another step."""
    monkeypatch.setattr(original_muon, "ns_compute_dtype", lambda method="gram": torch.float32)
    batch = samples(7, rl=kind == "rl")
    whole, cut = getattr(opening, kind)(ONE), getattr(opening, kind)(THREE_UNEVEN)
    update = sft(batch) if kind == "sft" else rl(batch)
    ours, theirs = update(whole), update(cut)
    for name in ours.keys() - {"seconds"}:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-6), name
    assert relative_error(weights_of(whole), weights_of(cut)) < 1e-5


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_normaliser_replaces_the_token_count(opening: Open, kind: str) -> None:
    """Dr. GRPO's constant: loss and gradient are divided by it; means of metrics stay means over tokens."""
    batch = samples(4, rl=kind == "rl")
    tokens = sum(sum(sample.trained) for sample in batch)
    found = []
    for normaliser in (None, 2.0 * tokens):
        learner = getattr(opening, kind)(max_grad_norm=NO_CLIP)
        update = learner.sft_update if kind == "sft" else learner.rl_update
        found.append((update(batch, lr_scale=1.0, normaliser=normaliser).metrics, first_gradients(learner)))
    (mean, by_tokens), (half, by_constant) = found
    assert relative_error({name: 2 * g for name, g in by_constant.items()}, by_tokens) < 1e-5
    assert 2 * half["loss"] == pytest.approx(mean["loss"], rel=1e-6)
    assert half["entropy"] == pytest.approx(mean["entropy"], rel=1e-6)


def test_tool_tokens_at_the_end_and_samples_without_loss_change_nothing(opening: Open) -> None:
    batch = samples(3, rl=True)
    tail = [
        Sample(ids=[*s.ids, 5, 6, 7], trained=[*s.trained, *[False] * 3], logprobs=[*s.logprobs, *[math.nan] * 3],
               advantage=s.advantage)
        for s in batch
    ]  # fmt: skip
    silent = Sample(ids=[1, 2, 3], trained=[False] * 3, logprobs=[0.0] * 3, advantage=9.0)
    plain, longer = (opening.rl(max_grad_norm=NO_CLIP) for _ in range(2))
    rl(batch)(plain)
    rl([*tail, silent])(longer)
    assert relative_error(first_gradients(longer), first_gradients(plain)) < 1e-5


def test_logprobs_are_those_of_a_plain_loop(opening: Open) -> None:
    batch = [*samples(5), Sample(ids=[3], trained=[False]), Sample(ids=[], trained=[])]
    ours = opening.rl(64, temperature=0.7).logprobs(batch)
    model = plain_model(opening.folder)
    for row, sample in zip(ours, batch, strict=True):
        theirs = [value.item() for value in plain_logp(model, sample, 0.7)] if sample.ids else []
        assert row == pytest.approx(theirs, abs=1e-5)
        assert row[:1] == [0.0][: len(row)]


@pytest.mark.parametrize("old", [False, True], ids=["from the update's own pass", "from old logprobs"])
def test_gap_to_the_sampler_is_before_the_update(opening: Open, old: bool) -> None:
    learner = opening.rl(THREE_UNEVEN)
    batch = samples(7, rl=True)
    own = learner.logprobs(batch)
    if old:
        batch = [replace(s, old_logprobs=row) for s, row in zip(batch, own, strict=True)]
        learner.rl_update(samples(7, seed=5, rl=True), lr_scale=50.0)
    gaps = [
        abs(a - b)
        for sample, row in zip(batch, own, strict=True)
        for a, b, on in zip(row, sample.logprobs, sample.trained, strict=True)
        if on
    ]
    metrics = rl(batch)(learner)
    assert metrics["logprob_gap_max"] == pytest.approx(max(gaps), rel=1e-4)
    assert metrics["logprob_gap_mean"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)


def test_the_learners_own_logprobs_leave_no_gap(opening: Open) -> None:
    learner = opening.rl(THREE_UNEVEN)
    batch = samples(7, rl=True)
    batch = [replace(s, logprobs=row) for s, row in zip(batch, learner.logprobs(batch), strict=True)]
    assert rl(batch)(learner)["logprob_gap_max"] < 1e-5


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_loss_that_is_not_finite_skips_the_step(opening: Open, kind: str) -> None:
    """Two good micro-batches go in first. The next update is to the bit that of a learner that never saw it."""
    batch = samples(7, rl=kind == "rl")
    shortest = min(range(7), key=lambda row: len(batch[row].ids))
    spoiled = [replace(s, advantage=math.inf) if row == shortest else s for row, s in enumerate(batch)]
    learner, clean = getattr(opening, kind)(THREE_UNEVEN), getattr(opening, kind)(THREE_UNEVEN)
    before = weights_of(learner)
    if kind == "sft":
        metrics = learner.sft_update(batch, lr_scale=1.0, normaliser=math.nan).metrics
    else:
        metrics = learner.rl_update(spoiled, lr_scale=1.0).metrics
    assert metrics["skipped"] == 1.0
    assert not math.isfinite(metrics["loss"])
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(learner).items())
    update = sft(batch) if kind == "sft" else rl(batch)
    assert update(learner)["skipped"] == update(clean)["skipped"] == 0.0
    theirs = weights_of(clean)
    assert all(torch.equal(theirs[name], weight) for name, weight in weights_of(learner).items())


def test_a_batch_with_nothing_to_learn_is_skipped_and_measures_nothing(opening: Open) -> None:
    learner = opening.rl()
    silent = Sample(ids=[1, 2], trained=[False, False], logprobs=[0.0, 0.0], advantage=1.0)
    for batch in ([], [silent]):
        metrics = rl(batch)(learner)
        assert metrics["skipped"] == 1.0
        assert metrics["tokens"] == metrics["loss"] == 0.0
        assert "entropy" not in metrics
    assert learner.updates == 0


def test_metrics_are_those_that_readers_know_by_name(opening: Open) -> None:
    common = {"loss", "entropy", "tokens", "grad_norm", "lr", "skipped", "seconds"}
    assert sft(samples(2))(opening.sft()).keys() >= common | {"nll", "muon_lr"}
    gaps = {"logprob_gap_max", "logprob_gap_mean", "kl_sampler"}
    ratios = {"clip_frac", "ratio_max", "ratio_mean", "effective_tokens"}
    assert rl(samples(2, rl=True))(opening.rl()).keys() >= common | gaps | ratios


def test_an_update_of_the_other_kind_is_refused(opening: Open) -> None:
    with pytest.raises(TypeError, match="rl_update on a learner that was made for sft_update"):
        opening.sft().rl_update(samples(1, rl=True), lr_scale=1.0)
    with pytest.raises(TypeError, match="sft_update on a learner that was made for rl_update"):
        opening.rl().sft_update(samples(1), lr_scale=1.0)


def test_a_kl_term_draws_back_to_the_reference(opening: Open, model_folder: Path, tmp_path: Path) -> None:
    """Without advantages nothing but the KL term moves the weights: towards the reference, from elsewhere."""
    batch = [replace(sample, advantage=0.0) for sample in samples(5, rl=True)]
    moved = opening.rl(learning_rate=1e-2)
    rl(samples(5, rl=True))(moved)
    moved.export(tmp_path)
    learner = Open(tmp_path, opening.opened).rl(kl_beta=1.0, reference=model_folder)
    rows = learner.reference_logprobs(batch)
    assert rows == opening.rl().logprobs(batch)
    batch = [replace(sample, reference_logprobs=row) for sample, row in zip(batch, rows, strict=True)]
    distances = [rl(batch)(learner)["kl_reference"] for _ in range(4)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5 * distances[0]


def test_reference_logprobs_want_a_reference(opening: Open) -> None:
    with pytest.raises(RuntimeError, match="opened without a reference model"):
        opening.rl().reference_logprobs(samples(1))


def test_the_sampler_weight_is_off_unless_asked_for(opening: Open) -> None:
    batch = samples(4, rl=True)
    assert rl(batch)(opening.rl())["weight_mean"] == 1.0
    assert rl(batch)(opening.rl(sampler_weight=True))["weight_mean"] != 1.0


def test_sft_memorises_eight_sequences(opening: Open) -> None:
    learner, batch = opening.sft(), samples(8)
    losses = [learner.sft_update(batch, lr_scale=1.0).metrics["loss"] for _ in range(60)]
    assert losses[0] > 3.0
    assert losses[-1] < 0.2
    assert min(losses[20:]) < min(losses[:20])


def test_rl_raises_what_was_rewarded_and_lowers_what_was_punished(opening: Open) -> None:
    learner, batch = opening.rl(), samples(6, rl=True)

    def gain() -> float:
        rows = learner.logprobs(batch)
        return sum(
            s.advantage * value
            for s, row in zip(batch, rows, strict=True)
            for value, on in zip(row, s.trained, strict=True)
            if on
        )

    before = gain()
    for _ in range(5):
        rl(batch)(learner)
    assert gain() > before + 1.0
