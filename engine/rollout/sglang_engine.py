"""A server of SGLang's that somebody else started, as a rollout engine: its native ``/generate``, ids in and out.

It must be started with ``--enable-metrics``, one of it for each of the recipe's ``urls``, on a machine that sees the
folders of this one under the same paths: new weights travel as a folder. What is decided here and why:

* Ids and log-probabilities come from ``meta_info.output_token_logprobs``: ``output_ids`` may lack the stop token that
  was sampled. Log-probabilities are those after temperature, unless the server runs with
  ``SGLANG_RETURN_ORIGINAL_LOGPROB`` (sglang #2664, #8375); a learner sees that as a gap, the engine cannot.
* ``ignore_eos`` would switch the request's own stop tokens off as well (``Req._check_token_based_finish``). Without it
  a turn also ends at the end tokens of the server's model; such a turn is gone on with from the same ids, which samples
  from the same distribution as if it had not ended.
* Every sampling parameter is said, so that no default of the server's or of the model's folder changes anything.
* ``/update_weights_from_disk`` waits for running turns and holds later ones back by itself, flushes the cache, and sets
  the version with the weights: one request, so that no answer names a version that did not sample it.
* ``start`` loads the recipe's model as version 0, whatever the server was started with, or served before. One that
  somebody starts again in the middle names its weights "default": it is then not there, until it is started here too.

Checked against answers that are put together from SGLang's sources (``tests/cases/recorded/sglang``); never yet against
a live server. Leaves out starting and ending it, process groups for weights, and aborting: a server notices a
connection that is gone within four seconds.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from engine.rollout.answers import from_json, log_probabilities, prometheus, token_ids, version_number
from engine.rollout.base import (
    EngineCapacity,
    EngineUnavailable,
    FinishReason,
    GenerateRequest,
    Generation,
    WeightReceiver,
    check_fits,
)
from engine.rollout.server_client import QUICK_S, Refused, ServerClient

FactT = TypeVar("FactT")

_METRICS = {
    "running": "num_running_reqs",
    "waiting": "num_queue_reqs",
    "kv_usage": "token_usage",
    "preemptions": "num_retracted_requests_total",
    "generated_tokens": "generation_tokens_total",
    "prefix_queries": "prompt_tokens_total",
    "prefix_hits": "cached_tokens_total",
}
_NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "min_new_tokens": 0,
    "n": 1,
    "stop": [],
    "ignore_eos": False,
    "no_stop_trim": True,
    "skip_special_tokens": False,
}


class SglangEngine:
    """One server at ``url``. ``model_folder`` holds the weights of version 0."""

    takes_weights = True
    tells_logprobs = True

    def __init__(
        self,
        name: str,
        *,
        url: str,
        model_folder: Path,
        max_model_tokens: int,
        start_timeout_s: float = 300.0,
        request_timeout_s: float = 600.0,
        key_variable: str | None = None,
    ) -> None:
        self.name = name
        self._model_folder = model_folder.absolute()
        self._max_model_tokens = max_model_tokens
        self._start_timeout_s = start_timeout_s
        self._client = ServerClient(name, url, key_variable=key_variable, request_timeout_s=request_timeout_s)

    async def start(self) -> None:
        """Wait for the server, give it the weights of version 0, and ask all that will be asked of it once."""
        await self.close()
        async with self._client.starting(self._start_timeout_s):
            await self._client.until_healthy("/health")
            await self.load_weights(self._model_folder, 0)
            await self.generate(GenerateRequest([0], max_tokens=1, temperature=0, stop_token_ids=()))
            await self.capacity()
            await self.metrics()

    async def generate(self, request: GenerateRequest) -> Generation:
        """One turn. ``ValueError`` if it overruns the context, also the server's own."""
        check_fits(request, self._max_model_tokens)
        made = await self._sample(request)
        while made.finish is FinishReason.stop and made.ids[-1] not in request.stop_token_ids:
            if len(made.ids) == request.max_tokens:
                return replace(made, finish=FinishReason.length)
            made = _joined(made, await self._sample(_rest(request, made)))
        return made

    async def _sample(self, request: GenerateRequest) -> Generation:
        """What the server makes of one request: it ends at the model's own end tokens, too."""
        parameters = {
            **_NEUTRAL,
            "temperature": request.temperature,
            "max_new_tokens": request.max_tokens,
            "stop_token_ids": list(request.stop_token_ids),
        }
        body = {
            "input_ids": list(request.prompt_ids),
            "sampling_params": parameters,
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": False,
        }
        return await self._client.turn("/generate", body, read_generation)

    def receiver(self) -> WeightReceiver | None:
        return None

    async def load_weights(self, folder: Path, version: int) -> None:
        """Running turns end with the old weights; requests that come meanwhile wait and get the new ones."""
        body = _update(folder, version)
        await self._client.read("POST", "/update_weights_from_disk", read_update, json=body)

    async def weight_version(self) -> int | None:
        return await self._tell("/model_info", "/get_model_info", read_version)

    async def capacity(self) -> EngineCapacity:
        """Also says whether it is still the server that was started: ``EngineUnavailable`` if not."""
        if await self.weight_version() is None:
            raise self._client.failure("serves weights that are not ours: somebody has started the server again")
        tokens, page = await self._tell("/server_info", "/get_server_info", read_cache)
        return EngineCapacity(tokens // page, page, self._max_model_tokens)

    async def metrics(self) -> dict[str, float]:
        return await self._client.read("GET", "/metrics", read_metrics, timeout_s=QUICK_S)

    async def _tell(self, path: str, older_path: str, reader: Callable[[str], FactT]) -> FactT:
        """What the server says of itself; older ones under another name."""
        try:
            return await self._client.read("GET", path, reader, timeout_s=QUICK_S)
        except Refused:
            return await self._client.read("GET", older_path, reader, timeout_s=QUICK_S)

    async def close(self) -> None:
        """Let go of the server; it goes on."""
        await self._client.close()


def _update(folder: Path, version: int) -> dict[str, Any]:
    """The request to serve a folder; the server's own working directory is another one than ours."""
    return {
        "model_path": str(folder.absolute()),
        "weight_version": str(version),
        "abort_all_requests": False,
        "flush_cache": True,
    }


def read_generation(text: str) -> Generation:
    """The answer of ``/generate`` to one list of ids."""
    told = from_json(text)["meta_info"]
    entries = told["output_token_logprobs"]
    ids = token_ids([entry[1] for entry in entries])
    logprobs = log_probabilities([entry[0] for entry in entries], ids)
    if told["completion_tokens"] != len(ids):
        raise ValueError(f"expected {told['completion_tokens']} completion tokens, got {len(ids)}")
    return Generation(ids, logprobs, _finish(told["finish_reason"], ids), version_number(told["weight_version"]))


def _finish(told: Any, ids: list[int]) -> FinishReason:
    """Why it ended. A stop is at a token: SGLang also calls it a stop when it met NaN and put a token in its place."""
    finish = FinishReason(told["type"])
    if finish is FinishReason.stop and (not ids or told["matched"] != ids[-1]):
        raise ValueError(f"expected to be stopped by the last of {len(ids)} tokens, got {told['matched']!r}")
    return finish


def read_update(text: str) -> None:
    """The answer of ``/update_weights_from_disk``."""
    told = from_json(text)
    if told["success"] is not True:
        raise ValueError(f"expected the weights to be taken, got: {told['message']}")


def read_version(text: str) -> int | None:
    """The version of ``/model_info``; None if the weights are none that we have numbered."""
    label = str(from_json(text)["weight_version"])
    return int(label) if label.isdecimal() else None


def read_cache(text: str) -> tuple[int, int]:
    """Of ``/server_info``: tokens that the KV cache holds, and tokens of a page."""
    told = from_json(text)
    return int(told["max_total_num_tokens"]), int(told["page_size"])


def read_metrics(text: str) -> dict[str, float]:
    """Of ``/metrics``, by our names; a counter appears when it first counts."""
    values, _ = prometheus(text, "sglang")
    if not values:
        raise ValueError("expected metrics of SGLang's: start the server with --enable-metrics")
    return {name: values.get(theirs, 0.0) for name, theirs in _METRICS.items()}


def _rest(request: GenerateRequest, made: Generation) -> GenerateRequest:
    """The same turn from where it is."""
    return replace(request, prompt_ids=[*request.prompt_ids, *made.ids], max_tokens=request.max_tokens - len(made.ids))


def _joined(first: Generation, second: Generation) -> Generation:
    """Two pieces of a turn, as one."""
    if first.version != second.version:
        raise EngineUnavailable(f"new weights within a turn: it began with {first.version}, then {second.version}")
    logprobs = [*(first.logprobs or ()), *(second.logprobs or ())]
    return replace(second, ids=[*first.ids, *second.ids], logprobs=logprobs)
