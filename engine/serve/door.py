"""The HTTP door of ``python -m engine serve``, as OpenAI's clients know it.

    GET  /                      the playground, a page without anything from elsewhere
    GET  /health                needs no token; 503 while no engine serves
    GET  /v1/models             the one model, its tools and limits
    POST /v1/chat/completions   an answer, or with ``stream`` its pieces as server-sent events, ``[DONE]`` at the end

Errors have OpenAI's form: 400 with the field that is wrong, 401 token, 404 model, 413 too large, 415 content type, 429
queue full and 503 our failure, both with Retry-After. What fails in the middle of a stream is its last event. A client
that hangs up has its rollout cancelled.

Leaves out TLS, which is a proxy's. The content type that is asked for is one that a browser does not send for a page
of another site, and without tokens only requests to this machine's own names are answered.
"""

import asyncio
import base64
import hashlib
import json
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from engine.serve.answers import Heading
from engine.serve.chat import Chat
from engine.serve.errors import ApiError, unavailable
from engine.serve.streaming import pieces
from engine.serve.wire import ChatRequest, read_request
from sandbox.doors.http_door import is_loopback
from sandbox.doors.http_tokens import Tokens, TokensUnusable

MOST_BODY_BYTES = 8 << 20
SLOWEST_READER_S = 60.0
"""Seconds a client may take to read what it was sent before it counts as gone."""

PAGE: Final = Path(__file__).with_name("page.html")
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_OPEN_TO_ALL = frozenset({"/", "/health"})
_FLUSH_S = 1.0
_CODES = {401: "invalid_api_key", 403: "forbidden_host", 404: "not_found", 413: "request_too_large"}

_log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Door:
    """Serves a chat. ``tokens``: who may come in; None: everybody on this machine."""

    def __init__(self, chat: Chat, tokens: Tokens | None) -> None:
        self._chat = chat
        self._tokens = tokens
        self._started = Heading(chat.agent.name).created
        self._page = PAGE.read_text(encoding="utf-8")
        self._page_headers = _headers_of(self._page)
        app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[_errors, self._guard])
        app.router.add_get("/", self._playground)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._completions)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_FLUSH_S)

    async def open(self, listener: socket.socket) -> None:
        """Begin to take connections at a bound socket."""
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def close(self) -> None:
        """Hang up on everybody; rollouts under way are cancelled."""
        await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._tokens is None:
            if not is_loopback(request.url.host or ""):  # a page of another site that has a name for 127.0.0.1
                raise web.HTTPForbidden(text=f"expected a request to localhost, not to {request.url.host}")
        elif request.path not in _OPEN_TO_ALL and not self._known(request, self._tokens):
            raise web.HTTPUnauthorized(
                text="expected Authorization: Bearer TOKEN with a token that this server knows",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return await handler(request)

    def _known(self, request: web.Request, tokens: Tokens) -> bool:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and tokens.owner(token.strip()) is not None

    async def _playground(self, _: web.Request) -> web.Response:
        return web.Response(text=self._page, content_type="text/html", headers=self._page_headers)

    async def _health(self, _: web.Request) -> web.Response:
        load = await self._chat.agent.pool.load()
        if not any(figures["serving"] for figures in load.values()):
            raise unavailable("no engine serves")
        return web.json_response({"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        agent = self._chat.agent
        model = {
            "id": agent.name,
            "object": "model",
            "created": self._started,
            "owned_by": "starloom",
            "max_model_len": agent.limits.context_tokens,
            "starloom": {
                "tools": [tool.spec.as_json() for tool in agent.tools],
                "max_turns": agent.limits.max_turns,
                "max_response_tokens": agent.limits.max_response_tokens,
            },
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(
                text=f"expected Content-Type: application/json, got {request.content_type}"
            )
        asked = read_request(await request.read())
        self._require_ours(asked)
        if asked.stream:
            return await self._stream(request, asked)
        made = await self._chat.sample(asked)
        return web.json_response(Heading(self._chat.agent.name).whole(made, asked.stop))

    def _require_ours(self, asked: ChatRequest) -> None:
        name = self._chat.agent.name
        if asked.model not in (None, name):
            message = f"model: there is no {asked.model!r} here, only {name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def _stream(self, request: web.Request, asked: ChatRequest) -> web.StreamResponse:
        """What fails before the first piece still gets a status of its own."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        async with aclosing(pieces(self._chat, asked)) as coming:
            first = await anext(coming)
            await response.prepare(request)
            try:
                async for data in _events(first, coming):
                    async with asyncio.timeout(SLOWEST_READER_S):
                        await response.write(f"data: {data}\n\n".encode())
            except (ConnectionError, TimeoutError):  # gone, or as good as gone: nobody to tell
                if request.transport:
                    request.transport.abort()
        return response


def _headers_of(page: str) -> dict[str, str]:
    """The page may run its own script and ask this server, and nothing else."""
    script = _SCRIPT.findall(page)[0].encode()
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


async def _events(first: dict[str, Any], coming: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """The pieces as data, to the end mark or to the error that the stream broke off with."""
    yield json.dumps(first)
    try:
        async for piece in coming:
            yield json.dumps(piece)
    except Exception as error:
        yield json.dumps(told(error).body)
    else:
        yield "[DONE]"


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error in OpenAI's form."""
    try:
        return await handler(request)
    except Exception as error:
        refused = told(error)
        return web.json_response(refused.body, status=refused.status, headers=refused.headers)


def told(error: Exception) -> ApiError:
    """An error as a client is told it. What is no refusal is a fault of ours, and goes into the log."""
    match error:
        case ApiError():
            return error
        case web.HTTPException():
            headers = {name: error.headers[name] for name in ("WWW-Authenticate", "Allow") if name in error.headers}
            message = error.text or error.reason
            return ApiError(error.status, message, code=_CODES.get(error.status), headers=headers)
        case TokensUnusable():  # which file, and why, is not for strangers
            _log.error("nobody can come in: %s", error)
            return unavailable("the server cannot read its tokens; its log says why")
    _log.error("a request failed", exc_info=error)
    return ApiError(500, "a fault of the server's; its log says more", kind="server_error", code="internal_error")
