"""Bodies in: strict JSON, dataset files as JSON lines, uploads. No body is read further than its limit.

What JSON allows and we cannot keep is refused here, with its place: NaN, infinities and numbers that overflow to one,
keys given twice, NUL characters and lone surrogates (neither Postgres nor the engine stores them).
"""

import json
import math
from collections.abc import Mapping
from tempfile import SpooledTemporaryFile
from typing import IO, Any, cast

from rest_framework.parsers import BaseParser, DataAndFiles, MultiPartParser

from webapp.api.problems import Problem, WrongInput, below_key

MB = 1024 * 1024
BODY_LIMIT = 2 * MB
DATASET_LIMIT = 256 * MB
_CHUNK = MB // 4


def body_too_large(limit: int) -> Problem:
    return Problem(413, "Body too large", f"The body may have at most {limit // MB} MB.", "body_too_large")


def unusable(detail: str, pointer: str = "") -> WrongInput:
    return WrongInput([{"pointer": pointer, "message": detail}], code="parse_error")


class StrictJsonParser(BaseParser):
    """``application/json``, at most 2 MB."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        body = stream.read(BODY_LIMIT + 1)
        if len(body) > BODY_LIMIT:
            raise body_too_large(BODY_LIMIT)
        return strict_json(body)


def strict_json(body: bytes) -> Any:
    """The body's value. Raises ``WrongInput`` that says what is not JSON, or not storable, and where."""
    try:
        value = json.loads(
            body.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_once
        )
        refuse_unstorable(value)
    except UnicodeDecodeError as error:
        raise unusable(f"the body is not UTF-8: byte {error.start}") from error
    except RecursionError as error:
        raise unusable("the body is nested too deeply") from error
    except ValueError as error:
        raise unusable(f"the body is not JSON: {error}") from error
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice in one object")
    return made


def refuse_unstorable(value: Any, place: str = "") -> None:
    """Raise ``WrongInput`` for text that Postgres would refuse."""
    if isinstance(value, str):
        if "\x00" in value:
            raise unusable("text must not contain the NUL character (\\u0000)", place)
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise unusable("text must not contain half a surrogate pair", place)
    elif isinstance(value, dict):
        for key, below in value.items():
            refuse_unstorable(key, place)
            refuse_unstorable(below, place + below_key(key))
    elif isinstance(value, list):
        for number, below in enumerate(value):
            refuse_unstorable(below, f"{place}/{number}")


class JsonLinesParser(BaseParser):
    """A file of JSON lines as the whole body, as ``curl --data-binary @problems.jsonl`` sends it. Not parsed here: it
    is kept beside the memory and handed on as ``{"file": ...}``."""

    media_type = "application/x-ndjson"

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        kept = SpooledTemporaryFile(max_size=BODY_LIMIT)  # noqa: SIM115  (lives as long as the request)
        limited = LimitedStream(stream, DATASET_LIMIT)
        while chunk := limited.read(_CHUNK):
            kept.write(chunk)
        kept.seek(0)
        return {"file": cast(IO[bytes], kept)}


class OtherJsonLinesParser(JsonLinesParser):
    """The same under its other common name."""

    media_type = "application/jsonl"


class UploadParser(MultiPartParser):
    """``multipart/form-data`` with a file, at most 256 MB."""

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> "DataAndFiles[Any, Any]":
        context = dict(parser_context) if parser_context is not None else None
        return super().parse(cast(IO[bytes], LimitedStream(stream, DATASET_LIMIT)), media_type, context)


class LimitedStream:
    """Reads from another stream and raises 413 as soon as more comes than may."""

    def __init__(self, stream: Any, limit: int) -> None:
        self._stream, self._left, self._limit = stream, limit, limit

    def read(self, size: int = _CHUNK) -> bytes:
        chunk: bytes = self._stream.read(size)
        self._left -= len(chunk)
        if self._left < 0:
            raise body_too_large(self._limit)
        return chunk
