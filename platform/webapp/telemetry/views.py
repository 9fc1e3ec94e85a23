"""Where engines post what happens: ``/api/v1/runs/{id}/events`` as ``engine.contract.delivery`` describes it.

A body is unpacked piece by piece and given up as soon as it is too large. Every refusal is problem+json that says
what was expected; ``code`` tells an engine what to do: go back to a cursor (``gap``), end (``superseded``), come again
later (503). Leaves out what a batch means: ``ingest.py``.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import IO, cast

import psycopg
import zstandard
from django.db import DataError, InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from engine.contract.delivery import Answer
from webapp.api.problems import RETRY_AFTER_S, Problem, WrongInput, problem
from webapp.runs import tokens
from webapp.runs.models import Run
from webapp.telemetry import ingest
from webapp.telemetry.door import Unacceptable, parse

MOST_BYTES = 64 * 2**20
PIECE = 2**16
LARGEST_WINDOW = 2**25

Unpack = Callable[[Iterator[bytes]], Iterator[bytes]]


class NoToken(Exception):
    """The request proves no run."""


@csrf_exempt
def events(request: HttpRequest, run_id: str) -> HttpResponse:
    """POST: take in a batch. GET: where the run stands and what waits for it. Both answer ``delivery.Answer``."""
    try:
        return _answered(request, run_id)
    except NoToken as error:
        headers = {"WWW-Authenticate": 'Bearer realm="run"'}
        return problem(request, 401, "Not authenticated", str(error), "not_authenticated", headers)
    except Problem as error:
        return problem(request, error.status_code, error.title, error.said, error.code, **error.extra)
    except ingest.Superseded as error:
        return problem(request, 409, "Superseded", f"{error}: this engine must end", "superseded")
    except ingest.Gap as error:
        cursor = {str(attempt): seq for attempt, seq in error.cursor.items()}
        return problem(request, 409, "Events are missing", str(error), "gap", cursor=cursor)
    except (OperationalError, InterfaceError, psycopg.OperationalError):
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        said = "the database does not answer; send the same again later"
        return problem(request, 503, "Not available now", said, "unavailable", headers)


def _answered(request: HttpRequest, run_id: str) -> HttpResponse:
    if request.method not in ("GET", "POST"):
        raise Problem(405, "Method not allowed", f"expected GET or POST, not {request.method}", "method_not_allowed")
    launch = launch_of(request, run_id)
    try:
        said = ingest.answer(run_id, launch) if request.method == "GET" else take_in(request, run_id, launch)
    except Run.DoesNotExist as error:
        raise Problem(404, "Not found", f"there is no run {run_id} (any more)", "not_found") from error
    return HttpResponse(said.model_dump_json(), content_type="application/json", headers={"Cache-Control": "no-store"})


def launch_of(request: HttpRequest, run_id: str) -> int:
    """The launch whose token came along. Raises ``NoToken``, or ``Problem`` when it is the token of another run."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.startswith("slr_"):
        raise NoToken("expected `Authorization: Bearer slr_...`, the token that the engine was started with")
    try:
        owner, launch = tokens.read(token.strip())
    except tokens.WrongToken as error:
        raise NoToken(str(error)) from error
    if owner != run_id:
        raise Problem(403, "Forbidden", f"the token is not one of run {run_id}", "permission_denied")
    return launch


def take_in(request: HttpRequest, run_id: str, launch: int) -> Answer:
    try:
        return ingest.take_in(run_id, parse(body_of(request)), launch=launch)
    except Unacceptable as error:
        faults = [{"pointer": place, "message": said, "code": "invalid"} for place, said in error.faults.items()]
        raise WrongInput(faults) from error
    except DataError as error:  # what the door did not think of
        raise WrongInput([{"pointer": "", "message": f"a value does not fit: {error}", "code": "invalid"}]) from error


def body_of(request: HttpRequest) -> bytes:
    """The unpacked body. Raises ``Problem``: an unknown encoding, damaged data, more than ``MOST_BYTES``."""
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    unpack = _UNPACK.get(encoding)
    if unpack is None:
        known = ", ".join(_UNPACK)
        raise Problem(415, "Unknown encoding", f"Content-Encoding {encoding!r:.40}: expected {known}", "wrong_encoding")
    whole = bytearray()
    try:
        for piece in unpack(iter(lambda: request.read(PIECE), b"")):
            whole += piece
            if len(whole) > MOST_BYTES:
                raise Problem(413, "Body too large", f"expected at most {MOST_BYTES} bytes unpacked", "body_too_large")
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise WrongInput(
            [{"pointer": "", "message": f"the body is not {encoding}: {error}", "code": "invalid"}]
        ) from error
    return bytes(whole)


def _identity(pieces: Iterator[bytes]) -> Iterator[bytes]:
    return pieces


def _gzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=31)
    for piece in pieces:
        while piece:
            yield unpacker.decompress(piece, PIECE)
            piece = unpacker.unconsumed_tail
    yield unpacker.flush()
    if not unpacker.eof:
        raise EOFError("it ends too early")


def _zstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """A small piece can unpack to very much, so it is unpacked by a reader that is asked for a little at a time."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
    packed = cast(IO[bytes], _Pieces(pieces))
    with unpacker.stream_reader(packed, read_size=PIECE, read_across_frames=True) as reader:
        while piece := reader.read(PIECE):
            yield piece


class _Pieces:
    """Pieces as something to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int = -1) -> bytes:
        return next(self._pieces, b"")


_UNPACK: dict[str, Unpack] = {"identity": _identity, "gzip": _gzip, "zstd": _zstd}
