"""Text to token ids and back: one renderer for SFT and rollouts, so that both see the same ids.

Structure (headers, end marks, response tags) is put together from ids; text of a problem or a tool is encoded with
control tokens switched off, so that ``<|im_end|>`` printed by a program stays text. The policy's own text is the one
exception: in SFT its tags are control tokens. An assistant's text that comes back from outside (``chat``) lies between
the two: its tags are control tokens, the marks that begin and end a message stay text. Leaves out chat templates of
other model families.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engine.contract.base import visible
from engine.data.protocol import CONTROL_TOKENS, END, START, SYSTEM, TAGS

_TAG = re.compile("(" + "|".join(map(re.escape, TAGS)) + ")")


@dataclass(frozen=True, slots=True)
class Message:
    """One message after the system prompt.

    ``assistant`` or ``user`` with its text, or ``tool`` with the responses of all calls of the turn before.
    """

    role: str
    texts: tuple[str, ...]


class Renderer:
    """Renders the protocol with one tokenizer and one system prompt.

    Its methods may be called from several threads: nothing of its tokenizers is changed after it was made.
    """

    def __init__(self, tokenizer_file: Path, *, system: str = SYSTEM) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._plain = _without_control_tokens(tokenizer_file)
        self._control = {token: self._control_id(token) for token in CONTROL_TOKENS}
        self.end_id = self._control[END]
        self._system_text = self.policy_text(system)
        self._system = self._message("system", self._system_text)

    def _control_id(self, token: str) -> int:
        found: int | None = self._tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"the tokenizer has no token {token}; the protocol's tags must be single tokens")
        return found

    def text(self, text: str) -> list[int]:
        """Ids of foreign text: control tokens in it stay text."""
        return list(self._plain.encode(visible(text), add_special_tokens=False).ids)

    def policy_text(self, text: str) -> list[int]:
        """Ids of text in the policy's own voice: tags are control tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def _header(self, role: str) -> list[int]:
        return [self._control[START], *self.text(f"{role}\n")]

    def _message(self, role: str, body: list[int]) -> list[int]:
        return [*self._header(role), *body, self.end_id, *self.text("\n")]

    def prompt(self, problem: str) -> list[int]:
        """System, user and the assistant's header: everything before the first sampled token."""
        return [*self._system, *self._message("user", self.text(problem)), *self._header("assistant")]

    def tool_turn(self, responses: Sequence[str]) -> list[int]:
        """What follows an assistant turn's end mark: tool responses under the user role, then the next header."""
        return [*self.text("\n"), *self._message("user", self._responses(responses)), *self._header("assistant")]

    def _responses(self, responses: Sequence[str]) -> list[int]:
        opening, closing = self._control["<tool_response>"], self._control["</tool_response>"]
        return [token for response in responses for token in (opening, *self.text(response), closing)]

    def chat(self, messages: Sequence[Message], *, system: str = "") -> list[int]:
        """A conversation from outside up to the assistant's header; ``system`` is foreign text after our own.

        Of one user message the same ids as ``prompt``. Of a rollout's texts the ids that SFT would make of them, which
        need not be those that were sampled: only a rollout under way is free of drift.
        """
        if system:
            ids = self._message("system", [*self._system_text, *self.text(f"\n\n{system}")])
        else:
            ids = list(self._system)
        for message in messages:
            ids += self._chat_message(message)
        return [*ids, *self._header("assistant")]

    def _chat_message(self, message: Message) -> list[int]:
        if message.role == "tool":
            return self._message("user", self._responses(message.texts))
        if message.role == "assistant":
            return self._message("assistant", self._returned_text(message.texts[0]))
        return self._message("user", self.text(message.texts[0]))

    def _returned_text(self, text: str) -> list[int]:
        """Ids of what an assistant is said to have written: whoever says so cannot end its message."""
        pieces = _TAG.split(visible(text))
        return [
            token
            for place, piece in enumerate(pieces)
            for token in ([self._control[piece]] if place % 2 else self.text(piece))
        ]

    def conversation(self, problem: str, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """A whole SFT trajectory: ids, and which of them the policy is trained on (its own text and end marks)."""
        ids = self.prompt(problem)
        trained = [False] * len(ids)
        for message in messages:
            own = message.role == "assistant"
            part = [*self.policy_text(message.texts[0]), self.end_id] if own else self.tool_turn(message.texts)
            ids += part
            trained += [own] * len(part)
        return ids, trained


def _without_control_tokens(tokenizer_file: Path) -> Tokenizer:
    """The tokenizer for foreign text. Taken out, since its own switch for it leaves tags that are not ``special``."""
    raw = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    return Tokenizer.from_str(json.dumps({**raw, "added_tokens": []}))
