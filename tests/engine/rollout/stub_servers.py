"""Servers of other people's inference engines, on loopback: what they say is recorded, what they sample a twin does.

``Sglang`` and ``OpenAi`` are a scripted engine behind the HTTP of SGLang and of an OpenAI-compatible server; each of
their answers is a recorded one (``tests/cases/recorded``) with this answer's tokens in it. ``Broken`` says what it is
told to say.
"""

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from aiohttp import web

from engine.rollout.base import EngineUnavailable, FinishReason, GenerateRequest, Generation
from engine.rollout.scripted_engine import ScriptedEngine

RECORDED = Path(__file__).parents[2] / "cases" / "recorded"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def recorded(name: str) -> dict[str, Any]:
    """One recorded answer: ``vllm/generate``."""
    return json.loads((RECORDED / f"{name}.json").read_text("utf-8"))


def said(name: str) -> str:
    """The body of a recorded answer as it was sent."""
    answer = recorded(name)["answer"]
    return answer if isinstance(answer, str) else json.dumps(answer)


def replay(name: str) -> web.Response:
    return web.Response(text=said(name), status=recorded(name)["status"])


class Server:
    """Listens on a port of loopback from ``start`` to ``stop``, on the same one after a second start."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def requests(self, path: str) -> list[Any]:
        """Bodies that were sent to ``path``."""
        return [body for asked, body in self.asked if asked == path]

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner:
            await self._runner.cleanup()
        self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.asked.append((request.path, body))
        self.headers.append(dict(request.headers))
        return await self.answer(request, body)

    async def answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        raise NotImplementedError


class Broken(Server):
    """Answers what ``says`` has for a path: a handler, or a status and a text."""

    def __init__(self, says: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.says = says or {}

    async def answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        say = self.says.get(request.path, (404, "nothing here"))
        if callable(say):
            return await say(request)
        return web.Response(status=say[0], text=say[1])


class Twin(Server):
    """A server in front of a scripted engine, whose model has end tokens of its own."""

    def __init__(self, engine: ScriptedEngine, *, end_tokens: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.engine = engine
        self.end_tokens = end_tokens
        self._requests = itertools.count()
        self._down: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.engine.start()
        await super().start()

    def crash(self) -> None:
        """Be gone under whatever runs, and come up again as something new."""
        self.engine.die()
        self._down = asyncio.ensure_future(self._again())

    async def _again(self) -> None:
        await self.stop()
        await self.start()

    async def sample(self, ids: list[int], max_tokens: int, temperature: float, stops: list[int]) -> Generation:
        """No two requests of the wire are alike to a model that is not greedy."""
        every = (*stops, *self.end_tokens)
        return await self.engine.generate(GenerateRequest(ids, max_tokens, temperature, every, next(self._requests)))


class Sglang(Twin):
    """SGLang's native API, as far as the engine uses it."""

    def __init__(self, engine: ScriptedEngine, *, end_tokens: tuple[int, ...] = ()) -> None:
        super().__init__(engine, end_tokens=end_tokens)
        self.label = "default"

    async def start(self) -> None:
        self.label = "default"
        await super().start()

    async def answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        match request.path:
            case "/health":
                return web.Response()
            case "/generate":
                return await self._generate(body)
            case "/update_weights_from_disk":
                return await self._update(body)
            case "/server_info":
                return await self._server_info()
            case "/model_info":
                told = recorded("sglang/model_info")["answer"]
                return web.json_response({**told, "weight_version": self.label})
            case "/metrics":
                return await self._metrics()
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _generate(self, body: Any) -> web.Response:
        wanted = body["sampling_params"]
        stops = [] if wanted["ignore_eos"] else wanted["stop_token_ids"]
        made = await self.sample(body["input_ids"], wanted["max_new_tokens"], wanted["temperature"], stops)
        stopped = made.finish is FinishReason.stop
        answer = deepcopy(recorded("sglang/generate_stop" if stopped else "sglang/generate_length")["answer"])
        answer["output_ids"] = made.ids[:-1] if stopped else made.ids
        told = answer["meta_info"]
        told["output_token_logprobs"] = [[p, i, None] for p, i in zip(made.logprobs or (), made.ids, strict=True)]
        told["completion_tokens"] = len(made.ids)
        told["weight_version"] = self.label
        told["finish_reason"] = (
            {"type": "stop", "matched": made.ids[-1]} if stopped else {"type": "length", "length": len(made.ids)}
        )
        return web.json_response(answer)

    async def _update(self, body: Any) -> web.Response:
        try:
            await self.engine.load_weights(Path(body["model_path"]), int(body["weight_version"]))
        except EngineUnavailable:
            await self.engine.start()
            return replay("sglang/update_refused")
        self.label = body["weight_version"]
        return replay("sglang/update_taken")

    async def _server_info(self) -> web.Response:
        capacity = await self.engine.capacity()
        tokens = capacity.kv_blocks * capacity.block_tokens
        told = recorded("sglang/server_info")["answer"]
        return web.json_response({**told, "max_total_num_tokens": tokens, "page_size": capacity.block_tokens})

    async def _metrics(self) -> web.Response:
        figures = await self.engine.metrics()
        ours = {"num_running_reqs": figures["running"], "generation_tokens_total": figures["generated_tokens"]}
        lines = [_with_value(line, ours) for line in said("sglang/metrics").splitlines()]
        return web.Response(text="\n".join([*lines, ""]))


def _with_value(line: str, values: dict[str, float]) -> str:
    name = line.split("{")[0].removeprefix("sglang:")
    return f"{line.rpartition(' ')[0]} {values[name]}" if name in values else line


class OpenAi(Twin):
    """``/v1/completions`` in the words of vLLM, or, with ``plain``, in nothing but OpenAI's own."""

    KNOWN = frozenset({"model", "prompt", "max_tokens", "temperature", "top_p", "stop", "n", "logprobs", "seed"})

    def __init__(
        self, engine: ScriptedEngine, *, plain: bool = False, decode: Callable[[list[int]], str] = str
    ) -> None:
        super().__init__(engine)
        self.plain = plain
        self.decode = decode

    async def answer(self, request: web.Request, body: Any) -> web.StreamResponse:
        match request.path:
            case "/v1/models":
                return replay("vllm/models")
            case "/v1/completions" if self.plain:
                return await self._text(body)
            case "/v1/completions":
                return await self._ids(body)
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _ids(self, body: Any) -> web.Response:
        made = await self.sample(body["prompt"], body["max_tokens"], body["temperature"], body["stop_token_ids"])
        answer = deepcopy(recorded("vllm/completions_ids")["answer"])
        answer["choices"][0] |= {"token_ids": made.ids, "finish_reason": str(made.finish)}
        answer["choices"][0]["logprobs"] |= {"token_logprobs": made.logprobs}
        return web.json_response(answer)

    async def _text(self, body: Any) -> web.Response:
        if unknown := set(body) - self.KNOWN:
            return web.json_response({"error": {"message": f"Unrecognized argument: {min(unknown)}"}}, status=400)
        stops = [ord(text) for text in body["stop"]]
        made = await self.sample(body["prompt"], body["max_tokens"], body["temperature"], stops)
        stopped = made.finish is FinishReason.stop
        answer = deepcopy(recorded("vllm/completions_text")["answer"])
        answer["choices"][0] |= {
            "text": self.decode(made.ids[:-1] if stopped else made.ids),
            "finish_reason": str(made.finish),
        }
        return web.json_response(answer)
