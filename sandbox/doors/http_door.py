"""The HTTP door: calls from other machines, by bearer token.

    POST   /v1/exec              one request in JSON -> its result
    POST   /v1/batch             JSON lines in, JSON lines out, as they end; `sandbox.batch` says what they hold
    DELETE /v1/sessions/{name}   let a session go
    GET    /v1/status            nodes and queue
    GET    /healthz              needs no token

Errors are problem+json (RFC 9457): 401 token, 410 session lost, 413 too large, 415 content type, 422 with the field
that is wrong, 429 busy, 503 we failed; the last two say when to come again. A client that hangs up has its calls
killed. Sessions belong to the name of the token: nobody else reaches them; they end by DELETE or by idling.

Leaves out TLS, which is a proxy's, and pages: the content types that it asks for are those that a browser does not
send for another site.
"""

import ipaddress
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus

from aiohttp import web

from sandbox.batch import Answer, run_batch
from sandbox.broker import Submitter
from sandbox.client import SandboxClient
from sandbox.contract import (
    MOST_REQUEST_BYTES,
    ExecRequest,
    ExecResult,
    RequestRefused,
    SandboxBusy,
    SandboxStatus,
    SandboxUnavailable,
    SessionLost,
)
from sandbox.doors.desk import Desk
from sandbox.doors.http_tokens import Tokens, TokensUnusable
from sandbox.doors.listening import CannotListen
from sandbox.parsing import FieldRefused, json_in, request_in

JSON_LINES = "application/x-ndjson"
_PROBLEM = "application/problem+json"
_FLUSH_S = 1.0
_BUSY_AGAIN_S, _FAILED_AGAIN_S = 1, 5
_LONGEST_SESSION = 128
_OWNER = web.RequestKey("owner", str)
_OWNER_WITHOUT_TOKENS = "local"
_log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpDoor:
    """Serves a desk at `host:port`, from `open` to `close`. tokens: who may come in; None: everybody on this machine.

    Raises `CannotListen` for an address that others reach, without tokens.
    """

    def __init__(self, desk: Desk, host: str, port: int, tokens: Tokens | None) -> None:
        if tokens is None and not is_loopback(host):
            raise CannotListen(
                f"{host} can be reached from other machines, so that calls need tokens: "
                f"make one with `python -m sandbox token NAME --tokens FILE` and start with --tokens FILE"
            )
        self._desk = desk
        self._place = host, port
        self._tokens = tokens
        app = web.Application(client_max_size=MOST_REQUEST_BYTES, middlewares=[_problems, self._guard])
        app.router.add_get("/healthz", self._health)
        app.router.add_post("/v1/exec", self._exec)
        app.router.add_post("/v1/batch", self._batch)
        app.router.add_delete("/v1/sessions/{name}", self._end_session)
        app.router.add_get("/v1/status", self._status)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_FLUSH_S)

    async def open(self) -> str:
        """Begin to take connections; the URL, with the port that was found for port 0. Raises `CannotListen`."""
        host, port = self._place
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror}") from error
        return f"http://{f'[{host}]' if ':' in host else host}:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Hang up on everybody, once what was answered is sent. Calls that run still are killed."""
        await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/healthz":
            request[_OWNER] = self._owner(request)
        return await handler(request)

    def _owner(self, request: web.Request) -> str:
        if self._tokens is None:
            if not is_loopback(request.url.host or ""):  # a page of another site that has a name for 127.0.0.1
                raise web.HTTPForbidden(text=f"expected a request to localhost, not to {request.url.host}")
            return _OWNER_WITHOUT_TOKENS
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        owner = self._tokens.owner(token.strip()) if scheme.lower() == "bearer" else None
        if owner is None:
            raise web.HTTPUnauthorized(
                text="expected Authorization: Bearer TOKEN with a token that this sandbox knows",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return owner

    async def _health(self, _: web.Request) -> web.Response:
        if self._desk.closing:
            raise SandboxUnavailable("the sandbox is being stopped")
        return web.json_response({"status": "ok"})

    async def _exec(self, request: web.Request) -> web.Response:
        _require_type(request, "application/json")
        call = request_in(json_in(await request.read()))
        return web.json_response((await self._owned(request).submit(call)).model_dump())

    async def _batch(self, request: web.Request) -> web.StreamResponse:
        _require_type(request, JSON_LINES)
        sandbox = SandboxClient(self._owned(request))
        await sandbox.status()  # while an error can still be told by its status code
        response = web.StreamResponse(headers={"Content-Type": JSON_LINES})
        await response.prepare(request)

        async def emit(answer: Answer) -> None:
            await response.write(json.dumps(answer).encode() + b"\n")

        try:
            await run_batch(sandbox, _body(request), emit)
        except (ConnectionError, web.RequestPayloadError):  # hung up, or speaks no HTTP any more: nobody to tell
            if request.transport:
                request.transport.abort()
        return response

    async def _end_session(self, request: web.Request) -> web.Response:
        await self._owned(request).end_session(request.match_info["name"])
        return web.Response(status=204)

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response((await self._desk.status()).model_dump())

    def _owned(self, request: web.Request) -> "_Owned":
        return _Owned(self._desk, request[_OWNER])


class _Owned:
    """A `Submitter` whose sessions are one owner's: their names begin with his, behind the door."""

    def __init__(self, submitter: Submitter, owner: str) -> None:
        self._submitter = submitter
        self._owner = owner

    async def submit(self, request: ExecRequest) -> ExecResult:
        if request.session is not None:
            request = request.model_copy(update={"session": self._name(request.session)})
        return await self._submitter.submit(request)

    async def end_session(self, session: str) -> None:
        await self._submitter.end_session(self._name(session))

    async def status(self) -> SandboxStatus:
        return await self._submitter.status()

    def _name(self, session: str) -> str:
        name = f"{self._owner}:{session}"
        if len(name) > _LONGEST_SESSION:
            raise FieldRefused(
                "session", f"at most {_LONGEST_SESSION - len(self._owner) - 1} characters for this token"
            )
        return name


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # some name
        return False


async def _body(request: web.Request) -> AsyncIterator[bytes]:
    async for chunk in request.content.iter_any():
        yield chunk


def _require_type(request: web.Request, wanted: str) -> None:
    if request.content_type != wanted:
        raise web.HTTPUnsupportedMediaType(text=f"expected Content-Type: {wanted}, got {request.content_type}")


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every error as problem+json."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        headers = {name: error.headers[name] for name in ("WWW-Authenticate", "Allow") if name in error.headers}
        return _problem(error.status, error.text or error.reason, headers=headers)
    except FieldRefused as error:
        return _problem(422, error.reason, field=error.field)
    except RequestRefused as error:
        return _problem(422, str(error))
    except SessionLost as error:
        return _problem(410, str(error))
    except SandboxBusy as error:
        return _problem(429, str(error), again_s=_BUSY_AGAIN_S)
    except SandboxUnavailable as error:
        return _problem(503, str(error), again_s=_FAILED_AGAIN_S)
    except TokensUnusable as error:  # which file, and why, is not for strangers
        _log.error("nobody can come in by HTTP: %s", error)
        return _problem(503, "the sandbox cannot read its tokens; its log says why", again_s=_FAILED_AGAIN_S)
    except Exception as error:  # a bug of ours: tell the client, and go on serving the others
        _log.exception("a request failed")
        return _problem(503, f"the sandbox failed: {error!r}", again_s=_FAILED_AGAIN_S)


def _problem(
    status: int,
    detail: str,
    *,
    field: str | None = None,
    again_s: int | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    what = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    if field is not None:
        what["field"] = field
    headers = {**(headers or {}), **({"Retry-After": str(again_s)} if again_s else {})}
    return web.Response(status=status, body=json.dumps(what).encode(), content_type=_PROBLEM, headers=headers)
