"""The tiny model and a run's model folder: a whole Hugging Face folder, the same for the same seed."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.contract.models import FolderModel, TinyModel
from engine.data.protocol import CONTROL_TOKENS, END
from engine.data.render import Renderer
from engine.models.folder import ensure_model
from engine.models.tiny import make_tiny_model

TINY = TinyModel(kind="tiny-qwen3", vocab_size=512, hidden_size=32, layers=1, heads=2, ffn_size=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_model(made, TINY, seed=3)
    return made


def test_transformers_opens_it(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "qwen3"
    assert model.config.tie_word_embeddings
    assert len(tokenizer) == model.config.vocab_size == 512
    assert tokenizer.eos_token == END
    assert [tokenizer.convert_tokens_to_ids(token) for token in CONTROL_TOKENS] == list(range(len(CONTROL_TOKENS)))


def test_transformers_and_the_renderer_agree_on_ids(folder: Path) -> None:
    text = '<reason>I will run Python.</reason><tool_call>{"name": "x"}</tool_call> 1234 é'
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (
        Renderer(folder / "tokenizer.json").policy_text(text) == tokenizer(text, add_special_tokens=False)["input_ids"]
    )


def test_the_tied_head_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    assert weights["lm_head.weight"].equal(weights["model.embed_tokens.weight"])


def test_equal_seeds_give_equal_files(folder: Path, tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "again", TINY, seed=3)
    make_tiny_model(tmp_path / "other", TINY, seed=4)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert (tmp_path / "other" / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()


def test_a_runs_model_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    ensure_model(tmp_path / "model", TINY, seed=3)
    before = (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns
    ensure_model(tmp_path / "model", TINY, seed=4)
    assert (tmp_path / "model" / "model.safetensors").stat().st_mtime_ns == before


def test_a_users_model_is_copied_into_the_run(folder: Path, tmp_path: Path) -> None:
    ensure_model(tmp_path / "model", FolderModel(kind="folder", path=folder), seed=0)
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "model").iterdir()}
