"""Keyset pages, newest first: links name the row they start from, so that a page stays right while rows are added.

Leaves out totals, which would cost a scan.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)
_ID = re.compile(r"[a-z]{2,5}_[0-9a-z]{26}")


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    """Rows, and the ids to go on from: ``newer`` and ``older`` are None where there is nothing."""

    rows: list[M]
    newer: str | None
    older: str | None

    @property
    def complete(self) -> bool:
        return self.newer is None and self.older is None


def page(rows: QuerySet[M], query: Mapping[str, str], size: int) -> Page[M]:
    """The page of ``rows`` that ``before=ID`` or ``after=ID`` of a query string ask for, else the first."""
    before, after = _cursor(query, "before"), _cursor(query, "after")
    if after and not before:
        newer = list(rows.filter(pk__gt=after).order_by("pk")[: size + 1])
        if len(newer) >= size:
            shown = newer[:size][::-1]
            return Page(shown, _id(shown[0]) if len(newer) > size else None, _id(shown[-1]))
        before = ""
    older = list((rows.filter(pk__lt=before) if before else rows).order_by("-pk")[: size + 1])
    shown = older[:size]
    return Page(
        shown,
        _id(shown[0]) if before and shown else None,
        _id(shown[-1]) if len(older) > size else None,
    )


def _cursor(query: Mapping[str, str], name: str) -> str:
    """An id, or nothing: what somebody made up leads to the first page."""
    given = query.get(name, "")
    return given if _ID.fullmatch(given) else ""


def _id(row: Model) -> str:
    return str(row.pk)
