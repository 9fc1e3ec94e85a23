"""HTML that cannot be broken out of: text is escaped unless it is already ``Html``, and only ``el`` makes
``Html``.

Everything a model or a program wrote is hostile. With escaping built into the only way to make an element,
forgetting it is no longer possible. Leaves out scripts: no text of a run ever goes into one.
"""

import html
from collections.abc import Iterable

from engine.contract.base import visible

_VOID = {"meta", "br", "hr", "wbr"}


class Html(str):
    """Markup that is safe as it stands."""

    __slots__ = ()


Child = str | Iterable["Child"]


def escape(text: str) -> Html:
    """Text as HTML. Control characters that HTML forbids are shown as escapes."""
    if isinstance(text, Html):
        return text
    return Html(html.escape("".join(_shown(c) for c in visible(text)) if not text.isprintable() else text))


def _shown(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if (code < 32 and character not in "\n\t") or 127 <= code < 160 else character


def join(*children: Child) -> Html:
    """Children one after the other."""
    return Html("".join(escape(child) if isinstance(child, str) else join(*child) for child in children))


def el(name: str, /, *children: Child, **attributes: str | bool | None) -> Html:
    """One element. ``class_`` loses its underscore, others become hyphens; False and None are left out."""
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{join(*children)}</{name}>")


def table(head: Iterable[str], rows: Iterable[Iterable[str]], *, class_: str = "") -> Html:
    """A table whose first column names the row."""
    body = [
        el("tr", [el("th", cell, scope="row") if i == 0 else el("td", cell) for i, cell in enumerate(row)])
        for row in rows
    ]
    header = el("thead", el("tr", [el("th", cell, scope="col") for cell in head]))
    return el("div", el("table", header, el("tbody", body), class_=class_ or None), class_="scroll")
