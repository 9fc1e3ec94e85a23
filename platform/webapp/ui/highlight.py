"""Code in colour, by Pygments with CSS classes (the colours are in ``frontend/src/pages.css``).

Its input is hostile: Pygments escapes it, hidden characters are named before, and what is too long stays plain.
"""

from functools import cache

from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from webapp.ui.inert import visible

LONGEST = 30_000


def code(text: str, language: str) -> SafeString:
    """``<pre>`` with the text in colour. ``language`` is Pygments' name: ``python``, ``toml``."""
    shown = visible(text)
    if len(shown) > LONGEST:
        return format_html("<pre>{}</pre>", shown)
    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    coloured = highlight(shown, lexer, _formatter()).rstrip("\n")
    return mark_safe(f"<pre>{coloured}</pre>")  # escaped by Pygments


@cache
def _formatter() -> "HtmlFormatter[str]":
    return HtmlFormatter(nowrap=True)
