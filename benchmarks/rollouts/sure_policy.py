"""A tiny policy that is sure of itself: each turn it writes a fixed thought and calls ``wait``, in the last it answers.

Two arms are compared fairly when both really sample the same tokens and really wait for the same tools. So nothing is
forced here: a small Qwen3 is trained, in seconds, until every token of that conversation has almost all probability,
and every arm samples from the same folder. Leaves out sampling.
"""

import itertools
import json
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from engine.bench.architecture import Architecture
from engine.bench.random_model import make_random_model
from engine.data.protocol import answer, system_prompt
from engine.data.render import Message, Renderer
from engine.data.tokenizer import save_tokenizer, train_tokenizer
from engine.rollout.tools.spec import ToolSpec

WAIT = ToolSpec(
    "wait",
    "Wait, then say which turn it was.",
    {"type": "object", "properties": {"turn": {"type": "string"}}, "required": ["turn"]},
)
VOCABULARY, CONTEXT = 512, 512
SHAPE = Architecture(hidden=64, layers=2, heads=2, kv_heads=2, head_size=32, ffn=192, vocabulary=VOCABULARY)
ALPHABET = string.ascii_uppercase + "!#$%&*+-=?@^~|;:"
"""Of thoughts: each character is a token, and tells the next."""

_RATE, _MOST_STEPS, _LOOK_EVERY = 3e-3, 2000, 10
_PROBLEMS = range(7, 12)
"""Seen in training: of three lengths. The policy does not care which it is asked."""


class NotSure(Exception):
    """The policy could not be trained to say what it should."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What follows every prompt. ``answers`` are equally likely; all else is sure."""

    calls: int
    thought_tokens: int
    """In front of every call and of the answer; at most as many as ``ALPHABET`` has."""
    answers: tuple[str, ...] = ("1",)
    sure: float = 0.95
    """Least probability at temperature 1 of a token that is not the answer. At 0.1 odds of 19 become 19^10."""

    @property
    def thought(self) -> str:
        return ALPHABET[: self.thought_tokens]

    def messages(self, given: str) -> list[Message]:
        turns = (
            (Message("assistant", (self.thought + call(turn),)), Message("tool", (str(turn),)))
            for turn in range(1, self.calls + 1)
        )
        return [*itertools.chain.from_iterable(turns), Message("assistant", (self.thought + answer(given),))]


def call(turn: int) -> str:
    body = json.dumps({"name": WAIT.name, "arguments": {"turn": str(turn)}})
    return f"<tool_call>{body}</tool_call>"


def problem(number: int) -> str:
    """Begins with a digit: the tokenizer cuts in front of it, however a prompt is put together."""
    return f"{number}+{number + 1}"


def system() -> str:
    return system_prompt([WAIT.as_json()])


def renderer(folder: Path) -> Renderer:
    return Renderer(folder / "tokenizer.json", system=system())


def make_policy(folder: Path, talk: Talk) -> Path:
    """Write the model and its tokenizer to ``folder`` and return it. Raises ``NotSure``."""
    disable_progress_bar()
    torch.set_num_threads(1)  # so small a model gains nothing from more, and beside other work they spin
    make_random_model(folder, SHAPE, context=CONTEXT)
    save_policy_tokenizer(folder, talk)
    render = renderer(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder)
    train(model, [said(render, problem(number), talk) for number in _PROBLEMS], talk.sure)
    model.save_pretrained(folder)
    return folder


def save_policy_tokenizer(folder: Path, talk: Talk) -> None:
    save_tokenizer(train_tokenizer(_corpus(talk), VOCABULARY), folder)


def _corpus(talk: Talk) -> list[str]:
    """Lines, each for itself, without thoughts: no token crosses a line's end or spells two characters of a thought."""
    said = [text.replace(talk.thought, "") for message in talk.messages("1") for text in message.texts]
    texts = [f"system\n{system()}\nuser\nassistant\n", *said]
    return [line for text in texts for line in text.splitlines(keepends=True)] * 8


@dataclass(frozen=True, slots=True)
class Said:
    """Conversations about a problem, one for each answer: ids [V, T], the policy's own [T], probability due [V, T]."""

    ids_VT: Tensor
    own_T: Tensor
    due_VT: Tensor


def said(render: Renderer, asked: str, talk: Talk) -> Said:
    made = [render.conversation(asked, talk.messages(given)) for given in talk.answers]
    ids_VT = torch.tensor([ids for ids, _ in made])
    return Said(ids_VT, torch.tensor(made[0][1]), (ids_VT[:, None] == ids_VT).float().mean(1))


def train(model: Any, conversations: Sequence[Said], sure: float) -> None:
    """Until every token of its own has ``sure`` of the probability that it is due."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, weight_decay=0.0)
    by_length = _batches(conversations)
    for step in range(_MOST_STEPS):
        logps = [own_logps(model, batch) for batch in by_length]
        loss = -torch.cat([logp for logp, _ in logps]).mean()
        least = min((logp.exp() / due).min() for logp, due in logps)
        if step % _LOOK_EVERY == 0 and least >= sure:
            return
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    raise NotSure(f"after {_MOST_STEPS} steps its least sure token has {least:.3f} of its probability, not {sure}")


def _batches(conversations: Sequence[Said]) -> list[Said]:
    """Those of one length together."""
    ordered = sorted(conversations, key=lambda each: len(each.own_T))
    groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda each: len(each.own_T))]
    return [
        Said(torch.cat([g.ids_VT for g in group]), group[0].own_T, torch.cat([g.due_VT for g in group]))
        for group in groups
    ]


def own_logps(model: Any, batch: Said) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the policy's own tokens, and the probability that each is due."""
    logp_VT = model(input_ids=batch.ids_VT).logits[:, :-1].log_softmax(-1)
    of_next_VT = logp_VT.gather(-1, batch.ids_VT[:, 1:, None]).squeeze(-1)
    own_T = batch.own_T[1:]
    return of_next_VT[:, own_T].flatten(), batch.due_VT[:, 1:][:, own_T].flatten()
