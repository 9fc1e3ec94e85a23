"""Answers out: strict JSON, and CSV and JSON lines where a view offers them.

A number that is not finite is written as null: whatever went wrong before, no reader chokes on one value.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from rest_framework.renderers import BaseRenderer

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z


def strict_json(value: Any) -> bytes:
    """JSON that every parser reads: NaN and infinities become null, times end in ``Z``."""
    return orjson.dumps(value, default=_plain, option=_OPTIONS)


def _plain(value: Any) -> Any:
    """What orjson does not know: REST framework's lazy mappings, lists and strings."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Iterable):
        return list(value)
    return str(value)


class StrictJsonRenderer(BaseRenderer):
    """``application/json``."""

    media_type = "application/json"
    format = "json"
    charset = None  # JSON is UTF-8

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        return b"" if data is None else strict_json(data)


class CsvRenderer(BaseRenderer):
    """``text/csv`` of rows that are dicts; the first line names the view's ``csv_columns``."""

    media_type = "text/csv"
    format = "csv"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        assert renderer_context is not None
        out = io.StringIO()
        writer = csv.DictWriter(out, renderer_context["view"].csv_columns, lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(data)
        return out.getvalue().encode()


class JsonLinesRenderer(BaseRenderer):
    """``application/x-ndjson``: only says that a view offers it; such views stream by themselves."""

    media_type = "application/x-ndjson"
    format = "ndjson"

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        return b"".join(strict_json(row) + b"\n" for row in data)
