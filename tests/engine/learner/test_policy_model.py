"""The policy model: packed scores and gradients are those of one sample at a time; its weights are whole and named."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.contract.stages import Lora
from engine.learner.base import Sample
from engine.learner.packing import Pack, pack_batch
from engine.learner.policy_model import ModelSettings, PolicyModel, write_model
from tests.engine.learner.plain import (
    MODELS,
    gradients,
    largest_error,
    plain_model,
    plain_scores,
    trajectories,
    write_folder,
)

ONE_PACK, SEVERAL, ALONE = 10_000, 60, 1
LORA = Lora(rank=3, alpha=5.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tied") / "model")


def scores_of(
    model: PolicyModel, batch: list[Sample], max_tokens: int, temperature: float = 1.0, **options: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, entropies and advantages of all packs, tokens in the batch's order."""
    packs = pack_batch(batch, max_tokens)
    order = torch.argsort(torch.cat([pack.row_T for pack in packs]), stable=True)
    scores = [model(pack, temperature, **options) for pack in packs]
    columns = (*zip(*scores, strict=True), [pack.advantage_T for pack in packs])
    logp_T, entropy_T, advantage_T = (torch.cat(column)[order] for column in columns)
    return logp_T, entropy_T, advantage_T


# --- scores ---


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("max_tokens", [ONE_PACK, SEVERAL, ALONE])
def test_packed_scores_and_gradients_are_those_of_one_sample_at_a_time(
    tmp_path: Path, name: str, max_tokens: int
) -> None:
    """In float64; the loss has the log-probability, the advantage and the entropy in it."""
    made, batch = write_folder(tmp_path / "model", name), trajectories(7)
    model = PolicyModel(made, ModelSettings(logits_chunk_tokens=10)).double()
    logp_T, entropy_T, advantage_T = scores_of(model, batch, max_tokens, 0.7, entropy_gradient=True)
    plain = plain_model(made)
    wanted_T, wanted_entropy_T = plain_scores(plain, batch, 0.7)
    torch.testing.assert_close(logp_T, wanted_T, rtol=1e-6, atol=1e-6)  # angles of positions are fp32 in all models
    torch.testing.assert_close(entropy_T, wanted_entropy_T, rtol=1e-6, atol=1e-6)
    (logp_T * advantage_T + 0.3 * entropy_T).sum().backward()
    (wanted_T * advantage_T + 0.3 * wanted_entropy_T).sum().backward()
    assert largest_error(gradients(model.causal), gradients(plain)) < 1e-6


@settings(max_examples=15)
@given(st.lists(st.integers(2, 14), min_size=2, max_size=5), st.data())
def test_a_token_does_not_change_when_its_neighbours_do(folder: Path, lengths: list[int], data: st.DataObject) -> None:
    """Nor when a token behind it in its own sample does: to the bit."""
    model = opened(folder)
    batch = [Sample([1] * length, [False, *[True] * (length - 1)]) for length in lengths]
    (pack,) = pack_batch(batch, ONE_PACK)
    changed = data.draw(st.integers(0, pack.ids_P.numel() - 1))
    other_P = pack.ids_P.clone()
    other_P[changed] = 2
    before, after = hidden_states(model, pack), hidden_states(model, replace(pack, ids_P=other_P))
    end = min(bound for bound in pack.bounds if bound > changed)
    same_P = (before == after).all(dim=-1)
    assert same_P[:changed].all()
    assert same_P[end:].all()
    assert not same_P[changed]


OPENED: dict[Path, PolicyModel] = {}


def opened(folder: Path) -> PolicyModel:
    return OPENED.setdefault(folder, PolicyModel(folder))


@torch.no_grad()
def hidden_states(model: PolicyModel, pack: Pack) -> Tensor:
    """[P, H], as the output layer is given them."""
    seen: list[Tensor] = []
    everywhere = replace(pack, place_T=torch.arange(pack.ids_P.numel()), target_T=pack.ids_P)
    hook = model.causal.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(everywhere, 1.0)
    hook.remove()
    (hidden_PH,) = seen
    return hidden_PH


@pytest.mark.parametrize(
    "options",
    [
        {"activation_checkpointing": True},
        {"logits_chunk_tokens": 7},
        {"activation_checkpointing": True, "logits_chunk_tokens": 7, "lora": LORA},
    ],
    ids=lambda options: " ".join(options),
)
def test_saving_memory_changes_no_score_and_no_gradient(folder: Path, options: dict[str, object]) -> None:
    batch = trajectories(5)
    frugal = PolicyModel(folder, ModelSettings(**options)).double()
    plenty = PolicyModel(folder, ModelSettings(lora=frugal.settings.lora)).double()
    for model in (frugal, plenty):
        logp_T, _, advantage_T = scores_of(model, batch, SEVERAL)
        (logp_T * advantage_T).sum().backward()
    assert largest_error(nonzero(gradients(frugal)), nonzero(gradients(plenty))) < 1e-12


def nonzero(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Adapters' first factors have none before the first step, when the second is zero."""
    return {name: gradient for name, gradient in found.items() if gradient.any()}


def test_activation_checkpointing_computes_every_layer_again_and_keeps_evaluation_mode(folder: Path) -> None:
    model = PolicyModel(folder, ModelSettings(activation_checkpointing=True)).train()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    layers = model.causal.base_model.layers
    for layer in layers:
        layer.mlp.register_forward_pre_hook(count)
    (pack,) = pack_batch(trajectories(2), ONE_PACK)
    model(pack, 1.0).logp_T.sum().backward()
    assert calls == 2 * len(layers)
    assert not any(module.training for module in model.modules() if module not in set(layers))


def test_a_filler_pass_has_a_gradient_and_it_is_zero(folder: Path) -> None:
    """All weights take part: with ZeRO-3 a rank that skipped one would leave the others waiting."""
    model = PolicyModel(folder)
    (filler,) = pack_batch(trajectories(1), ONE_PACK, rank=1, world=2)
    loss = model(filler, 1.0).logp_T.sum()
    loss.backward()
    assert loss.item() == 0.0
    found = gradients(model)
    assert found.keys() == dict(model.named_parameters()).keys()
    assert not any(gradient.any() for gradient in found.values())


def test_bf16_is_near_fp32_and_its_scores_are_fp32(folder: Path) -> None:
    batch = trajectories(5)
    logp_T, entropy_T, _ = scores_of(PolicyModel(folder, ModelSettings(precision="bf16")), batch, SEVERAL)
    assert logp_T.dtype == entropy_T.dtype == torch.float32
    wanted_T, _, _ = scores_of(PolicyModel(folder), batch, SEVERAL)
    assert (logp_T - wanted_T).abs().mean() < 0.1


def test_a_model_with_a_sliding_window_is_refused(folder: Path, tmp_path: Path) -> None:
    changed(folder, tmp_path, use_sliding_window=True, sliding_window=4, max_window_layers=0, layer_types=None)
    (pack,) = pack_batch(trajectories(2), ONE_PACK)
    with pytest.raises(ValueError, match="sliding window"):
        PolicyModel(tmp_path)(pack, 1.0)


def changed(folder: Path, target: Path, **config: object) -> None:
    """A copy of a model folder with other settings."""
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    settings = json.loads((folder / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps({key: it for key, it in settings.items() if it is not None}))


# --- weights ---


def snapshot(model: PolicyModel) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in model.named_weights()}


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_folder_by_name_the_tied_head_included(
    tmp_path: Path, name: str, lora: Lora | None
) -> None:
    """Adapters that have not learnt anything change nothing."""
    made = write_folder(tmp_path / "model", name)
    model, wanted = PolicyModel(made, ModelSettings(lora=lora)), load_file(made / "model.safetensors")
    ours = snapshot(model)
    assert ours.keys() == wanted.keys() | {"lm_head.weight"}
    assert all(torch.equal(ours[key], weight) for key, weight in wanted.items())
    specs = {spec.name: (spec.dtype, spec.shape) for spec in model.weight_specs()}
    assert specs == {key: ("float32", tuple(weight.shape)) for key, weight in ours.items()}
    assert list(specs) == list(ours)


def test_named_weights_share_memory_with_the_parameters_and_carry_no_gradient(folder: Path) -> None:
    model = PolicyModel(folder)
    parameters = {weight.data_ptr() for weight in model.parameters()}
    for _, weight in model.named_weights():
        assert weight.data_ptr() in parameters
        assert not weight.requires_grad


def test_merged_weights_compute_what_the_adapters_do_and_leave_the_base_alone(folder: Path, tmp_path: Path) -> None:
    """W + alpha / r B A, so that a folder without adapters scores as the model with them."""
    model = PolicyModel(folder, ModelSettings(lora=LORA))
    spread_adapters(model)
    base = {name: weight.clone() for name, weight in model.named_parameters() if not weight.requires_grad}
    write_model(tmp_path, snapshot(model), model.config_json)
    batch = trajectories(5)
    merged_T, _, _ = scores_of(PolicyModel(tmp_path), batch, SEVERAL)
    ours_T, _, _ = scores_of(model, batch, SEVERAL)
    untrained_T, _, _ = scores_of(PolicyModel(folder), batch, SEVERAL)
    torch.testing.assert_close(merged_T, ours_T, rtol=1e-4, atol=1e-4)
    assert (ours_T - untrained_T).abs().mean() > 0.1
    assert all(torch.equal(weight, base[name]) for name, weight in model.named_parameters() if name in base)


@torch.no_grad()
def spread_adapters(model: PolicyModel) -> None:
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.normal_(std=0.3)


def test_adapters_are_on_all_linear_layers_of_the_blocks_and_only_they_are_trained(folder: Path) -> None:
    model = PolicyModel(folder, ModelSettings(lora=LORA))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    linear = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    assert trained == {
        f"causal.model.layers.{layer}.{place}.lora_{side}.default.weight"
        for layer in range(2)
        for place in linear
        for side in "AB"
    }


def test_adapters_start_the_same_everywhere_and_draw_nothing_from_the_process(folder: Path) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = PolicyModel(folder, ModelSettings(lora=LORA)).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second = PolicyModel(folder, ModelSettings(lora=LORA)).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


# --- what is written ---


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_written_folder_opens_in_its_own_number_format_with_the_head_in_the_file(
    folder: Path, tmp_path: Path, precision: str
) -> None:
    model = PolicyModel(folder, ModelSettings(precision=precision))
    write_model(tmp_path, snapshot(model), model.config_json)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    assert again.dtype == dtype
    assert all(torch.equal(weight, model.causal.state_dict()[key]) for key, weight in again.state_dict().items())
    file = load_file(tmp_path / "model.safetensors")
    assert torch.equal(file["lm_head.weight"], file["model.embed_tokens.weight"])
    assert {weight.dtype for weight in file.values()} == {dtype}


def test_the_config_stays_as_it_was_read_but_for_the_number_format(folder: Path, tmp_path: Path) -> None:
    changed(folder, tmp_path, dtype=None, torch_dtype="bfloat16", somebody_elses_key=[1])
    read = json.loads((tmp_path / "config.json").read_text())
    assert json.loads(PolicyModel(tmp_path).config_json) == read | {"torch_dtype": "float32"}
    assert json.loads(PolicyModel(tmp_path, ModelSettings(precision="bf16")).config_json) == read


# --- the card ---


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: PolicyModel(folder, ModelSettings(lora=LORA)),
        lambda folder: PolicyModel(folder, ModelSettings(lora=Lora(rank=4, alpha=5.0))),
        lambda folder: PolicyModel(folder, ModelSettings(lora=Lora(rank=3, alpha=6.0))),
    ],
    ids=["adapters", "adapters of another rank", "adapters of another scale"],
)
def test_cards_tell_adapters_apart(folder: Path, other: Callable[[Path], PolicyModel]) -> None:
    cards = {PolicyModel(folder).card().digest, PolicyModel(folder, ModelSettings(lora=Lora(rank=2))).card().digest}
    assert other(folder).card().digest not in cards
    assert "LoRA of rank" in str(other(folder).card())


def test_the_card_does_not_depend_on_how_memory_is_saved(folder: Path) -> None:
    thrifty = ModelSettings(precision="bf16", activation_checkpointing=True, logits_chunk_tokens=3)
    assert PolicyModel(folder, thrifty).card() == PolicyModel(folder).card()
    assert PolicyModel(folder).card().parameters == sum(w.numel() for w in PolicyModel(folder).parameters())
