"""Rendering: structure from ids, foreign text stays text, SFT and rollouts agree id by id."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.base import visible
from engine.contract.stages import PlantedErrors
from engine.data.arithmetic import make_problems
from engine.data.protocol import CONTROL_TOKENS, END, PAD, START, TAGS, answer, tool_call
from engine.data.render import Message, Renderer
from engine.data.sft_trajectories import sample_texts
from engine.data.tokenizer import save_tokenizer, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    rng = random.Random(0)
    problems = make_problems(rng, 300, {1: 0.5, 2: 0.5})
    save_tokenizer(train_tokenizer(sample_texts(rng, problems, PlantedErrors()), 600), folder)
    return folder / "tokenizer.json"


@pytest.fixture(scope="module")
def renderer(tokenizer: Path) -> Renderer:
    return Renderer(tokenizer)


def control_ids(renderer: Renderer) -> set[int]:
    return {token for tag in CONTROL_TOKENS for token in renderer.policy_text(tag)}


def test_every_tag_is_one_token(renderer: Renderer) -> None:
    assert all(len(renderer.policy_text(tag)) == 1 for tag in CONTROL_TOKENS)


def test_digits_stand_alone(renderer: Renderer) -> None:
    assert len(renderer.text("123456789")) == 9


@given(text=st.text())
def test_foreign_text_comes_back_and_holds_no_control_token(renderer: Renderer, text: str) -> None:
    ids = renderer.text(text)
    assert renderer.decode(ids) == visible(text)
    assert not set(ids) & control_ids(renderer)


@pytest.mark.parametrize("tag", CONTROL_TOKENS)
def test_a_tag_printed_by_a_program_stays_text(renderer: Renderer, tag: str) -> None:
    """verl #6501: special-token text in tool output must not end the turn."""
    ids = renderer.tool_turn([f"a {tag} b"])
    clean = renderer.tool_turn(["a b"])
    assert [i for i in ids if i in control_ids(renderer)] == [i for i in clean if i in control_ids(renderer)]
    assert f"a {tag} b" in renderer.decode(ids)


def test_the_newline_after_the_end_mark_is_added_once(renderer: Renderer) -> None:
    turn = renderer.decode(renderer.tool_turn(["5"]))
    assert turn == "\n<|im_start|>user\n<tool_response>5</tool_response><|im_end|>\n<|im_start|>assistant\n"


def test_sft_and_rollout_agree_id_by_id(renderer: Renderer) -> None:
    """The ids that SFT trains on are those that a rollout of the same texts would hold."""
    call, last = f"<reason>I will run Python.</reason>{tool_call('print(5)')}", answer("5")
    messages = [Message("assistant", (call,)), Message("tool", ("5",)), Message("assistant", (last,))]
    ids, trained = renderer.conversation("Compute 2 times 3.", messages)
    own_call = [*renderer.policy_text(call), renderer.end_id]
    own_last = [*renderer.policy_text(last), renderer.end_id]
    prompt, tool = renderer.prompt("Compute 2 times 3."), renderer.tool_turn(["5"])
    assert ids == [*prompt, *own_call, *tool, *own_last]
    mask = [(len(prompt), False), (len(own_call), True), (len(tool), False), (len(own_last), True)]
    assert trained == [value for count, value in mask for _ in range(count)]


def test_several_responses_are_all_kept_in_order(renderer: Renderer) -> None:
    """slime PR 2264: consecutive tool replies are both kept."""
    text = renderer.decode(renderer.tool_turn(["one", "two"]))
    assert "<tool_response>one</tool_response><tool_response>two</tool_response>" in text
    assert text.count(END) == 1


def test_a_chat_of_one_message_is_a_prompt(renderer: Renderer) -> None:
    assert renderer.chat([Message("user", ("Compute 2 times 3.",))]) == renderer.prompt("Compute 2 times 3.")


def test_a_chat_has_the_ids_that_sft_makes_of_the_same_texts(renderer: Renderer) -> None:
    call = f"<reason>I will run Python.</reason>{tool_call('print(5)')}"
    said = [Message("assistant", (call,)), Message("tool", ("5", "6"))]
    ids, _ = renderer.conversation("Compute 2 times 3.", said)
    assert renderer.chat([Message("user", ("Compute 2 times 3.",)), *said]) == ids


@pytest.mark.parametrize("mark", [START, END, PAD])
def test_nobody_ends_a_message_that_is_said_to_be_the_assistants(renderer: Renderer, mark: str) -> None:
    ids = renderer.chat([Message("assistant", (f"a {mark} b",))])
    clean = renderer.chat([Message("assistant", ("a b",))])
    assert [i for i in ids if i in control_ids(renderer)] == [i for i in clean if i in control_ids(renderer)]


@given(text=st.lists(st.sampled_from(["a", " 12", "\n", "é", "print(", "<", *TAGS])).map("".join))
def test_an_assistants_own_text_comes_back_as_the_ids_of_its_own_voice(renderer: Renderer, text: str) -> None:
    own = [*renderer.policy_text(text), renderer.end_id]
    chat = renderer.chat([Message("assistant", (text,))])
    header = len(renderer.chat([]))
    assert chat[header : header + len(own)] == own


def test_a_clients_system_text_follows_ours_and_is_foreign(renderer: Renderer) -> None:
    text = renderer.decode(renderer.chat([], system=f"Be brief. {END}"))
    assert text.startswith("<|im_start|>system\nThink in <reason>")
    assert f"</tool_call>.\n\nBe brief. {END}{END}\n<|im_start|>assistant\n" in text


def test_a_tag_that_the_tokenizer_does_not_call_special_stays_text_too(
    renderer: Renderer, tokenizer: Path, tmp_path: Path
) -> None:
    """Qwen3 has <tool_call> as a token that is not `special`."""
    raw = json.loads(tokenizer.read_text(encoding="utf-8"))
    raw["added_tokens"] = [{**token, "special": False} for token in raw["added_tokens"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw), encoding="utf-8")
    assert Renderer(tmp_path / "tokenizer.json").text("a <tool_call> b") == renderer.text("a <tool_call> b")


def test_a_tokenizer_without_the_tags_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"no token <\|pad\|>"):
        Renderer(tmp_path / "tokenizer.json")
