"""Any server with OpenAI's ``/completions`` as an engine to evaluate with: it serves what it serves, for good.

A server that knows vLLM's words (``return_token_ids``, stop tokens by id) answers with ids, mostly with their
log-probabilities, and nothing is ever encoded again. One that refuses those words, or answers without ids, is taken for
what OpenAI's own protocol can do: text, which our tokenizer encodes, with the end mark put back where the server
stopped at it. Such ids need not be those that were sampled, they have no log-probabilities, and a server that leaves
control tokens out of its text leaves the tags of tool calls out with them. ``start`` finds out which it is.

Prompts are ids either way: the server's tokenizer must be that of the recipe's model. ``ignore_eos`` is not said: it
keeps vLLM to our stop tokens, but SGLang takes it for "no stop token at all". Log-probabilities are what the server
calls so: vLLM's are from before the temperature unless it runs with ``--logprobs-mode processed_logprobs``.

Leaves out chat endpoints (a template of the server's would stand between the ids and the model), weights, and load: the
protocol tells none, so that nothing but the number of rollouts in flight is bounded.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from engine.rollout.answers import from_json, log_probabilities, token_ids
from engine.rollout.base import (
    EngineCapacity,
    FinishReason,
    GenerateRequest,
    Generation,
    WeightReceiver,
    check_fits,
)
from engine.rollout.server_client import Refused, ServerClient

VERSION = 0
"""The one version that such a server has: what the recipe's model is declared to be."""

_BLOCK_TOKENS = 16


class TextCodec(Protocol):
    """The tokenizer of the recipe's model, as ``engine.data.render.Renderer`` has it."""

    def policy_text(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class OpenAiEngine:
    """``served_model`` at ``url``, which ends like an OpenAI SDK's base URL; ``/v1`` is added to one without a path."""

    takes_weights = False

    def __init__(
        self,
        name: str,
        *,
        url: str,
        served_model: str,
        text: TextCodec,
        max_model_tokens: int,
        max_running: int = 256,
        start_timeout_s: float = 300.0,
        request_timeout_s: float = 600.0,
        key_variable: str | None = None,
    ) -> None:
        self.name = name
        self.tells_logprobs = False
        self._served_model = served_model
        self._text = text
        self._max_model_tokens = max_model_tokens
        self._max_running = max_running
        self._start_timeout_s = start_timeout_s
        self._tells_ids = False
        base = url if re.fullmatch(r"https?://[^/]+/.+", url) else f"{url.rstrip('/')}/v1"
        self._client = ServerClient(name, base, key_variable=key_variable, request_timeout_s=request_timeout_s)

    async def start(self) -> None:
        """Wait for the server, and find out whether it tells ids and log-probabilities."""
        await self.close()
        async with self._client.starting(self._start_timeout_s):
            await self._client.until_healthy("/models")
            probe = GenerateRequest(self._text.policy_text("1"), max_tokens=1, temperature=0, stop_token_ids=())
            self._tells_ids = await self._asked_for_ids(probe)
            self.tells_logprobs = (await self._sample(probe)).logprobs is not None

    async def _asked_for_ids(self, probe: GenerateRequest) -> bool:
        """Whether ids come back when they are asked for."""
        try:
            return await self._client.read("POST", "/completions", tells_ids, json=self._in_ids(probe))
        except Refused:  # of words that it does not know; what else is wrong, the next request shows
            return False

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn. ``ValueError`` if it overruns the context, also the server's own."""
        check_fits(request, self._max_model_tokens)
        return await self._sample(request)

    async def _sample(self, request: GenerateRequest) -> Generation:
        if self._tells_ids:
            return await self._client.turn("/completions", self._in_ids(request), read_ids)
        return await self._client.turn(
            "/completions", self._in_text(request), lambda answer: read_text(answer, request, self._text)
        )

    def _in_ids(self, request: GenerateRequest) -> dict[str, Any]:
        """A request in the words of vLLM. With tokens named by their ids it needs no tokenizer there."""
        return {
            **self._plain(request),
            "logprobs": 1,
            "stop_token_ids": list(request.stop_token_ids),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }

    def _in_text(self, request: GenerateRequest) -> dict[str, Any]:
        return {**self._plain(request), "stop": [self._text.decode([token]) for token in request.stop_token_ids]}

    def _plain(self, request: GenerateRequest) -> dict[str, Any]:
        return {
            "model": self._served_model,
            "prompt": list(request.prompt_ids),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": 1.0,
        }

    def receiver(self) -> WeightReceiver | None:
        return None

    async def load_weights(self, folder: Path, version: int) -> None:
        """Nothing, for the version that is there: the recipe's model. ``ValueError`` for any other."""
        if version != VERSION:
            raise ValueError(
                f"engine {self.name} takes no new weights: version {version} of {folder} stays where it is"
            )

    async def weight_version(self) -> int | None:
        return VERSION

    async def capacity(self) -> EngineCapacity:
        """As if every rollout in flight had room: what the server can hold is not told."""
        blocks = self._max_running * -(-self._max_model_tokens // _BLOCK_TOKENS)
        return EngineCapacity(blocks + 1, _BLOCK_TOKENS, self._max_model_tokens)

    async def metrics(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        """Let go of the server; it goes on."""
        await self._client.close()


def tells_ids(text: str) -> bool:
    """Whether an answer has its tokens' ids."""
    return from_json(text)["choices"][0].get("token_ids") is not None


def read_ids(text: str) -> Generation:
    """The one choice of an answer with ids; a stop token is among them."""
    choice = from_json(text)["choices"][0]
    ids = token_ids(choice["token_ids"])
    told = choice.get("logprobs")
    logprobs = None if told is None else log_probabilities(told["token_logprobs"], ids)
    return Generation(ids, logprobs, FinishReason(choice["finish_reason"]), VERSION)


def read_text(text: str, request: GenerateRequest, codec: TextCodec) -> Generation:
    """The one choice of an answer in text, encoded, with the stop token that the server has left out."""
    answer = from_json(text)
    choice = answer["choices"][0]
    finish, written = FinishReason(choice["finish_reason"]), choice["text"]
    if not written and finish is FinishReason.length:
        raise ValueError(f"expected text of up to {request.max_tokens} tokens, got none: it has no tokenizer")
    ended = list(request.stop_token_ids[:1]) if finish is FinishReason.stop else []
    ids = [*codec.policy_text(written), *ended]
    if len(ids) > request.max_tokens:  # our tokenizer needs more tokens for it than the server did
        return Generation(ids[: request.max_tokens], None, FinishReason.length, VERSION)
    return Generation(ids, None, finish, VERSION)
