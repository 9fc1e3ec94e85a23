"""Lists a page at a time by keyset: a page is what follows the last row seen, found through an index.

So a page costs the same wherever it is, and rows that are created meanwhile are neither shown twice nor make others
fall out. The cursor is opaque: base64url of its version, ordering, direction and the keys of one row.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from django.core.exceptions import FieldDoesNotExist
from django.db.models import Model, Q, QuerySet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import remove_query_param, replace_query_param

from webapp.api.problems import WrongInput

VERSION = 1
DEFAULT_LIMIT, MAX_LIMIT = 50, 500


def wrong(parameter: str, message: str, code: str = "invalid") -> WrongInput:
    return WrongInput([{"parameter": parameter, "message": message}], code=code)


@dataclass(frozen=True)
class Cursor:
    """Where a page starts: beyond the row with ``keys`` in ``ordering``, or before it when ``backwards``."""

    ordering: str
    keys: tuple[str | int, ...]
    backwards: bool = False

    def __str__(self) -> str:
        packed = json.dumps([VERSION, self.ordering, int(self.backwards), *self.keys], separators=(",", ":"))
        return base64.urlsafe_b64encode(packed.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> "Cursor":
        """Raises ``WrongInput`` for whatever is not a cursor of ours."""
        try:
            unpacked = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
            version, ordering, backwards, *keys = unpacked
            if version != VERSION or not isinstance(ordering, str) or not all(type(key) in (str, int) for key in keys):
                raise ValueError("not of this version")
        except (binascii.Error, ValueError, TypeError, RecursionError) as error:
            said = "not a cursor of this list: take `next` or `previous` of an answer as it is"
            raise wrong("cursor", said, "invalid_cursor") from error
        return cls(ordering, tuple(keys), bool(backwards))


class KeysetPagination(BasePagination):
    """``limit``, ``cursor``, ``ordering`` and ``count``; a view names its ``orderings``: name -> model fields."""

    parameters: ClassVar[tuple[str, ...]] = ("limit", "page_size", "cursor", "ordering", "count")

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        self.request, self.count = request, self._count(queryset, request)
        self.limit = limit_of(request.query_params)
        self.ordering, self.fields = ordering_of(request.query_params, view.orderings, view.default_ordering)
        cursor = self._cursor(queryset.model)
        page = self._page(queryset, cursor)
        self.next, self.previous = self._neighbours(page, cursor)
        return page.rows

    def _count(self, queryset: QuerySet[Any], request: Request) -> int | None:
        asked = request.query_params.get("count")
        if asked not in (None, "exact"):
            raise wrong("count", f"expected exact, given {asked!r:.40}")
        return queryset.count() if asked else None

    def _cursor(self, model: type[Model]) -> Cursor | None:
        text = self.request.query_params.get("cursor")
        if not text:
            return None
        cursor = Cursor.read(text)
        if cursor.ordering != self.ordering:
            raise wrong("cursor", f"this cursor goes with ordering={cursor.ordering}", "invalid_cursor")
        if not fits(model, self.fields, cursor.keys):
            raise wrong("cursor", "not a cursor of this list", "invalid_cursor")
        return cursor

    def _page(self, queryset: QuerySet[Any], cursor: Cursor | None) -> "_Page":
        backwards = cursor is not None and cursor.backwards
        descending = self.ordering.startswith("-") != backwards
        if cursor is not None:
            queryset = queryset.filter(beyond(self.fields, cursor.keys, descending))
        sign = "-" if descending else ""
        rows = list(queryset.order_by(*(sign + name for name in self.fields))[: self.limit + 1])
        page = _Page(rows[: self.limit], more=len(rows) > self.limit)
        if backwards:
            page.rows.reverse()
        return page

    def _neighbours(self, page: "_Page", cursor: Cursor | None) -> tuple[str | None, str | None]:
        """Links to the pages after and before; where we came from there is something, but from the first page."""
        if not page.rows:
            return None, None
        backwards = cursor is not None and cursor.backwards
        after = page.more if not backwards else True
        before = page.more if backwards else cursor is not None
        return (
            self._link(page.rows[-1], backwards=False) if after else None,
            self._link(page.rows[0], backwards=True) if before else None,
        )

    def _link(self, row: Any, *, backwards: bool) -> str:
        cursor = Cursor(self.ordering, tuple(getattr(row, name) for name in self.fields), backwards)
        url = remove_query_param(self.request.build_absolute_uri(), "count")
        return str(replace_query_param(url, "cursor", str(cursor)))

    def get_paginated_response(self, data: Any) -> Response:
        counted = {} if self.count is None else {"count": self.count}
        body = {"results": data, "next": self.next, "previous": self.previous, **counted}
        links = [f'<{url}>; rel="{name}"' for name, url in (("next", self.next), ("previous", self.previous)) if url]
        return Response(body, headers={"Link": ", ".join(links)} if links else None)

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["results", "next", "previous"],
            "properties": {
                "results": schema,
                "next": {**link, "description": "Address of the page after; null at the end. Also in `Link`."},
                "previous": {**link, "description": "Address of the page before; null at the start. Also in `Link`."},
                "count": {"type": "integer", "description": "All rows that match; only with `count=exact`."},
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        names = [sign + name for name in view.orderings for sign in ("", "-")]
        limit = {"type": "integer", "minimum": 1, "default": DEFAULT_LIMIT}
        said = f"Rows a page; more than {MAX_LIMIT} gives {MAX_LIMIT}."
        return [
            _parameter("limit", limit, said),
            _parameter("page_size", limit, "Another name of `limit`."),
            _parameter("cursor", {"type": "string"}, "From `next` or `previous` of an answer; opaque."),
            _parameter("ordering", {"type": "string", "enum": names, "default": view.default_ordering}, "Order."),
            _parameter("count", {"type": "string", "enum": ["exact"]}, "Have all matching rows counted; costs time."),
        ]


def _parameter(name: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": dict(schema), "description": description}


@dataclass
class _Page:
    rows: list[Any] = field(default_factory=list)
    more: bool = False


def limit_of(parameters: Mapping[str, str]) -> int:
    """Rows a page: ``limit`` (or ``page_size``), capped. Raises ``WrongInput``."""
    name = "limit" if "limit" in parameters else "page_size"
    text = parameters.get(name)
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and text.strip("0")):
        raise wrong(name, f"expected a whole number from 1 on; more than {MAX_LIMIT} gives {MAX_LIMIT}")
    return MAX_LIMIT if len(text) > 9 else min(int(text), MAX_LIMIT)


def ordering_of(
    parameters: Mapping[str, str], orderings: Mapping[str, Sequence[str]], default: str
) -> tuple[str, Sequence[str]]:
    """The ordering asked for, as (name with sign, fields). Raises ``WrongInput`` for one without an index."""
    asked = parameters.get("ordering") or default
    name = asked.removeprefix("-")
    if name not in orderings:
        raise wrong("ordering", f"expected one of {', '.join(orderings)}, or one of them with - before it")
    return asked, orderings[name]


def fits(model: type[Model], fields: Sequence[str], keys: Sequence[str | int]) -> bool:
    """Whether a cursor's keys can be compared with the fields: as many, of their kinds, storable."""
    if len(keys) != len(fields):
        return False
    for name, key in zip(fields, keys, strict=True):
        try:
            text = "Char" in model._meta.get_field(name).get_internal_type()
        except FieldDoesNotExist:
            return False
        if text != isinstance(key, str) or (isinstance(key, str) and not key.isprintable()):
            return False
        if isinstance(key, int) and not 0 <= key < 2**31:
            return False
    return True


def beyond(fields: Sequence[str], keys: Sequence[str | int], descending: bool) -> Q:
    """Rows after that of ``keys``: (a, b) > (x, y). The bound on the first field alone is what an index can use."""
    sign = "lt" if descending else "gt"
    found, same = Q(), Q()
    for name, key in zip(fields, keys, strict=True):
        found |= same & Q(**{f"{name}__{sign}": key})
        same &= Q(**{name: key})
    first = Q(**{f"{fields[0]}__{sign}e": keys[0]})
    return found if len(fields) == 1 else first & found
