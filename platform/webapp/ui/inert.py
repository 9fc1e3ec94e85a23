"""Text of models and programs, made harmless to look at: what could hide is shown, what is endless is folded.

HTML is escaped by the templates; here go characters that escaping leaves alone (bidirectional overrides, control
characters) and sizes that a page does not survive. Leaves out the exact text: downloads have it.
"""

import re
from dataclasses import dataclass

FOLD_LINES = 20
FOLD_CHARACTERS = 4096
PAGE_CHARACTERS = 65_536

# C0 without tab and newline, DEL, C1, soft hyphen, zero-width and bidirectional marks, Unicode tags, BOM.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """The text with every character that shows nothing, or that moves others, named: ``⟦U+202E⟧``."""
    return _HIDDEN.sub(lambda hit: f"⟦U+{ord(hit.group()):04X}⟧", text.replace("\r\n", "\n"))


def one_line(text: str, longest: int = 80) -> str:
    """The beginning of a text on one line, for tables and titles."""
    flat = " ".join(visible(text[: 4 * longest]).split())
    return flat if len(flat) <= longest and len(text) <= 4 * longest else flat[: longest - 1] + "…"


@dataclass(frozen=True, slots=True)
class Folded:
    """A text as a page shows it: ``head`` at once, ``whole`` (empty: head is all) on demand. ``cut`` says that even
    ``whole`` is only its beginning."""

    head: str
    whole: str
    lines: int
    characters: int

    @property
    def cut(self) -> bool:
        return self.characters > PAGE_CHARACTERS


def fold(text: str) -> Folded:
    """The first 20 lines or 4 KB of a text, and the rest of it up to 64 KB."""
    lines = text.count("\n") + 1
    shown = "\n".join(text[: FOLD_CHARACTERS + 1].split("\n")[:FOLD_LINES])[:FOLD_CHARACTERS]
    whole = "" if shown == text else visible(text[:PAGE_CHARACTERS])
    return Folded(visible(shown), whole, lines, len(text))
