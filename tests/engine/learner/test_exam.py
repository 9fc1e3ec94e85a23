"""The exam that every learner passes: one rank in this process, two in processes of their own, and the twin.

What a learner computes is held against a twin in plain torch; the rest is what ``engine.learner.base`` says.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engine.contract.stages import RlStage, SftStage
from engine.learner.base import CheckpointMismatch, Learner, Sample
from engine.learner.opening import open_rl_learner, open_sft_learner
from tests.engine.learner.support import make_folder, resources, rl_stage, samples, sft_stage
from tests.engine.learner.twin import TwinLearner

pytestmark = pytest.mark.e2e

KINDS = ["one rank", "two ranks", "twin"]
PLACES = 64
"""Tokens of a pass: a batch of seven is cut into several, unevenly."""
SFT = sft_stage(optimizer="adamw", learning_rate=0.01)
RL = rl_stage(learning_rate=0.01, temperature=0.7)

Ranked = tuple[Learner, Path]
"""Two ranks for the whole module, and a checkpoint of their first state: every test begins with it."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("reference") / "tiny", seed=1)


def ranked(learner: Learner, folder: Path) -> Iterator[Ranked]:
    learner.save(folder / "first").wait()
    yield learner, folder / "first"
    learner.close()


@pytest.fixture(scope="module")
def ranked_sft(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranked]:
    learner = open_sft_learner(model_folder, SFT, resources(PLACES, ranks=2))
    yield from ranked(learner, tmp_path_factory.mktemp("sft"))


@pytest.fixture(scope="module")
def ranked_rl(model_folder: Path, reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranked]:
    """At ZeRO 3, where no rank holds a whole weight."""
    where = resources(PLACES, ranks=2, zero_stage=3)
    learner = open_rl_learner(model_folder, RL, where, sampler_weight=False, reference=reference)
    yield from ranked(learner, tmp_path_factory.mktemp("rl"))


def opened(kind: str, request: pytest.FixtureRequest, stage: SftStage | RlStage) -> Iterator[Learner]:
    folder: Path = request.getfixturevalue("model_folder")
    if kind == "two ranks":
        learner, first = request.getfixturevalue(f"ranked_{stage.kind}")
        learner.load(first)
        yield learner
        return
    reference = request.getfixturevalue("reference") if isinstance(stage, RlStage) else None
    if kind == "twin":
        learner = TwinLearner(folder, stage, reference=reference)
    elif isinstance(stage, RlStage):
        learner = open_rl_learner(folder, stage, resources(PLACES), sampler_weight=False, reference=reference)
    else:
        learner = open_sft_learner(folder, stage, resources(PLACES))
    yield learner
    learner.close()


@pytest.fixture(params=KINDS)
def sft(request: pytest.FixtureRequest) -> Iterator[Learner]:
    yield from opened(request.param, request, SFT)


@pytest.fixture(params=KINDS)
def rl(request: pytest.FixtureRequest) -> Iterator[Learner]:
    """With a reference model of other weights."""
    yield from opened(request.param, request, RL)


@pytest.fixture
def sft_twin(model_folder: Path) -> Iterator[TwinLearner]:
    yield from closing(TwinLearner(model_folder, SFT))


@pytest.fixture
def rl_twin(model_folder: Path, reference: Path) -> Iterator[TwinLearner]:
    yield from closing(TwinLearner(model_folder, RL, reference=reference))


def closing(twin: TwinLearner) -> Iterator[TwinLearner]:
    yield twin
    twin.close()


PROBE = samples(4, seed=99)


def close(rows: Sequence[Sequence[float]], others: Sequence[Sequence[float]], tolerance: float) -> bool:
    pairs = zip(rows, others, strict=True)
    return all(list(row) == pytest.approx(list(other), abs=tolerance) for row, other in pairs)


def with_old(learner: Learner, batch: Sequence[Sample]) -> list[Sample]:
    return [replace(s, old_logprobs=row) for s, row in zip(batch, learner.logprobs(batch), strict=True)]


# --- learning ---


def test_sft_lowers_its_loss(sft: Learner) -> None:
    batch = samples(7)
    losses = [sft.sft_update(batch, lr_scale=1.0).metrics["loss"] for _ in range(5)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]


def test_rl_makes_right_samples_likelier_than_wrong_ones(rl: Learner) -> None:
    batch = samples(7, rl=True)

    def preference() -> float:
        rows = rl.logprobs(batch)
        return sum(s.advantage * sum(row[1:]) for s, row in zip(batch, rows, strict=True))

    before = preference()
    for _ in range(3):
        rl.rl_update(batch, lr_scale=1.0)
    assert preference() > before + 1.0


FIGURES = ("loss", "grad_norm", "tokens", "lr", "skipped")


def test_sft_updates_are_those_of_the_twin(sft: Learner, sft_twin: TwinLearner) -> None:
    for step in range(3):
        ours, theirs = (each.sft_update(samples(7, seed=step), lr_scale=0.5).metrics for each in (sft, sft_twin))
        assert ours["nll"] == pytest.approx(theirs["nll"], rel=1e-4)
        assert {n: ours[n] for n in FIGURES} == pytest.approx({n: theirs[n] for n in FIGURES}, rel=1e-4)
    assert close(sft.logprobs(PROBE), sft_twin.logprobs(PROBE), 1e-3)


def test_rl_updates_are_those_of_the_twin(rl: Learner, rl_twin: TwinLearner) -> None:
    names = (*FIGURES, "clip_frac", "ratio_max", "ratio_mean", "logprob_gap_max", "logprob_gap_mean")
    for step in range(3):
        batch = samples(7, seed=step, rl=True)
        ours, theirs = (each.rl_update(batch, lr_scale=0.5).metrics for each in (rl, rl_twin))
        assert {n: ours[n] for n in names} == pytest.approx({n: theirs[n] for n in names}, rel=1e-4, abs=1e-5)
    assert close(rl.logprobs(PROBE), rl_twin.logprobs(PROBE), 1e-3)


def test_a_normaliser_takes_the_place_of_the_token_count(rl: Learner) -> None:
    batch = samples(7, rl=True)
    plain = rl.rl_update(batch, lr_scale=0.0).metrics
    divided = rl.rl_update(batch, lr_scale=0.0, normaliser=2 * plain["tokens"]).metrics
    assert divided["loss"] == pytest.approx(plain["loss"] / 2, rel=1e-6)
    assert divided["grad_norm"] == pytest.approx(plain["grad_norm"] / 2, rel=1e-4)
    assert divided["tokens"] == plain["tokens"]


def test_a_rate_of_zero_moves_nothing(rl: Learner) -> None:
    before = rl.logprobs(PROBE)
    assert rl.rl_update(samples(7, rl=True), lr_scale=0.0).metrics["lr"] == 0.0
    assert rl.logprobs(PROBE) == before


# --- several updates on one rollout batch ---


def test_one_update_a_step_has_a_ratio_of_one(rl: Learner) -> None:
    metrics = rl.rl_update(samples(7, rl=True), lr_scale=1.0).metrics
    assert (metrics["ratio_max"], metrics["clip_frac"]) == (1.0, 0.0)


def test_old_logprobs_say_the_same_at_first_and_clip_later(rl: Learner) -> None:
    """The first of several updates is that of a step with one; the next sees how far the policy has moved since."""
    batch = with_old(rl, samples(7, rl=True))
    alone = rl.rl_update(samples(7, rl=True), lr_scale=0.0).metrics
    first = rl.rl_update(batch, lr_scale=1.0).metrics
    second = rl.rl_update(batch, lr_scale=1.0).metrics
    assert first["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert first["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)
    assert first["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert second["ratio_max"] > 1.05
    assert second["clip_frac"] > 0.0


# --- reading ---


def test_logprobs_are_the_models_at_the_rollout_temperature(rl: Learner, rl_twin: TwinLearner) -> None:
    rows = rl.logprobs(PROBE)
    assert [row[0] for row in rows] == [0.0] * len(PROBE)
    assert [len(row) for row in rows] == [len(sample.ids) for sample in PROBE]
    assert close(rows, rl_twin.logprobs(PROBE), 1e-4)


def test_logprobs_ask_nothing_of_a_sample_but_its_ids(sft: Learner) -> None:
    bare = [Sample(ids=s.ids, trained=[False] * len(s.ids)) for s in PROBE]
    assert sft.logprobs(bare) == sft.logprobs(PROBE)
    assert sft.logprobs([Sample(ids=[5], trained=[False])]) == [[0.0]]
    assert sft.logprobs([]) == []


def test_the_reference_stays_while_the_policy_learns(rl: Learner, rl_twin: TwinLearner) -> None:
    before = rl.reference_logprobs(PROBE)
    rl.rl_update(samples(7, rl=True), lr_scale=1.0)
    assert rl.reference_logprobs(PROBE) == before
    assert close(before, rl_twin.reference_logprobs(PROBE), 1e-4)
    assert not close(before, rl.logprobs(PROBE), 1e-1)


def test_a_learner_without_a_reference_says_so(sft: Learner) -> None:
    with pytest.raises(RuntimeError, match="opened without a reference model"):
        sft.reference_logprobs(PROBE)


# --- what is not learned from ---


def trained_nowhere() -> list[Sample]:
    return [replace(sample, trained=[False] * len(sample.ids)) for sample in samples(3, rl=True)]


@pytest.mark.parametrize("batch", [[], trained_nowhere()], ids=["empty", "nothing trained"])
def test_a_batch_without_a_trained_token_changes_nothing(rl: Learner, batch: list[Sample]) -> None:
    before = rl.logprobs(PROBE)
    metrics = rl.rl_update(batch, lr_scale=1.0).metrics
    assert (metrics["skipped"], metrics["tokens"], metrics["loss"]) == (1.0, 0.0, 0.0)
    assert rl.logprobs(PROBE) == before


def test_a_loss_that_is_not_finite_changes_nothing(rl: Learner, rl_twin: TwinLearner) -> None:
    """Neither weights nor moments: the update after it is that of a learner that has never seen it."""
    before = rl.logprobs(PROBE)
    poisoned = [*samples(6, rl=True), replace(samples(7, rl=True)[-1], advantage=math.nan)]
    assert rl.rl_update(poisoned, lr_scale=1.0).metrics["skipped"] == 1.0
    assert rl.logprobs(PROBE) == before
    for each in (rl, rl_twin):
        assert each.rl_update(samples(7, rl=True), lr_scale=1.0).metrics["skipped"] == 0.0
    assert close(rl.logprobs(PROBE), rl_twin.logprobs(PROBE), 1e-3)


def test_a_malformed_sample_is_refused_by_its_number(rl: Learner) -> None:
    batch = samples(3, rl=True)
    batch[1] = replace(batch[1], logprobs=[-1.0])
    before = rl.logprobs(PROBE)
    with pytest.raises(ValueError, match=r"sample 1: logprobs has 1 places, ids has \d+"):
        rl.rl_update(batch, lr_scale=1.0)
    assert rl.logprobs(PROBE) == before


# --- weights for rollout engines ---


def test_the_specs_name_what_an_export_holds_with_its_tied_head(rl: Learner, tmp_path: Path) -> None:
    rl.export(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    specs = {spec.name: (f"torch.{spec.dtype}", spec.shape) for spec in rl.weight_specs()}
    assert specs == {name: (str(weight.dtype), tuple(weight.shape)) for name, weight in weights.items()}
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_an_export_is_a_model_of_the_same_policy(rl: Learner, tmp_path: Path) -> None:
    rl.rl_update(samples(7, rl=True), lr_scale=1.0)
    rl.export(tmp_path)
    assert close(rl.logprobs(PROBE), logprobs_of(tmp_path), 1e-4)


@torch.no_grad()
def logprobs_of(folder: Path) -> list[list[float]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = []
    for sample in PROBE:
        ids_L = torch.tensor(list(sample.ids))
        logp_LV = torch.log_softmax(model(input_ids=ids_L[None]).logits[0, :-1] / RL.temperature, dim=-1)
        rows.append([0.0, *logp_LV.gather(1, ids_L[1:, None])[:, 0].tolist()])
    return rows


# --- checkpoints ---


def two_more(learner: Learner) -> list[list[float]]:
    for step in (1, 2):
        learner.rl_update(samples(7, seed=step, rl=True), lr_scale=1.0)
    return learner.logprobs(PROBE)


def test_a_learner_goes_on_from_its_checkpoint_to_the_bit(rl: Learner, tmp_path: Path) -> None:
    rl.rl_update(samples(7, rl=True), lr_scale=1.0)
    rl.save(tmp_path / "c").wait()
    here = two_more(rl)
    rl.load(tmp_path / "c")
    assert two_more(rl) == here


def test_what_is_written_is_the_state_at_the_call(rl: Learner, tmp_path: Path) -> None:
    rl.rl_update(samples(7, rl=True), lr_scale=1.0)
    before = rl.logprobs(PROBE)
    saving = rl.save(tmp_path / "c", model_folder=tmp_path / "m")
    two_more(rl)
    saving.wait()
    saving.wait()
    assert close(before, logprobs_of(tmp_path / "m"), 1e-4)
    rl.load(tmp_path / "c")
    assert rl.logprobs(PROBE) == before


def test_a_saved_model_is_an_exported_one(rl: Learner, tmp_path: Path) -> None:
    rl.save(tmp_path / "c", model_folder=tmp_path / "m").wait()
    rl.export(tmp_path / "e")
    assert files(tmp_path / "m") == files(tmp_path / "e")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of another model, ``twin`` and ``real``. For the module: one rank is open in a process at a time."""
    folder = tmp_path_factory.mktemp("wider")
    model = make_folder(folder / "model", hidden_size=64)
    learners = {
        "twin": TwinLearner(model, RL),
        "real": open_rl_learner(model, RL, resources(), sampler_weight=False, reference=None),
    }
    for name, learner in learners.items():
        learner.save(folder / name).wait()
        learner.close()
    return folder


def test_a_checkpoint_of_another_model_is_refused_and_both_are_named(wider: Path, rl: Learner) -> None:
    before = rl.logprobs(PROBE)
    with pytest.raises(CheckpointMismatch, match=r"hidden size 64.*hidden size 32"):
        rl.load(wider / ("twin" if isinstance(rl, TwinLearner) else "real"))
    assert rl.logprobs(PROBE) == before
