"""The text of a turn while it is sampled: whole characters only, and nothing from the first stop sequence on.

Leaves out which ids are of which turn: ``streaming.py``.
"""

from collections.abc import Callable, Sequence

MOST_TOKENS_A_CHARACTER = 4
"""UTF-8 spells no character with more bytes, so that no more tokens can hold pieces of one."""

REPLACEMENT = "\ufffd"
"""What decoders put where bytes are no character, or not yet."""


def cut_at(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop sequence."""
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text


class Characters:
    """From ids, as they come, to text. A character that is spelled by several tokens is told with the last of them."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._held: list[int] = []

    def add(self, ids: Sequence[int]) -> str:
        self._held += ids
        for kept in range(MOST_TOKENS_A_CHARACTER):
            whole = self._held[: max(0, len(self._held) - kept)]
            text = self._decode(whole)
            if not text.endswith(REPLACEMENT):
                break
        self._held = self._held[len(whole) :]  # of all that was held, no more can still become a character
        return text

    def rest(self) -> str:
        """What is left at the turn's end."""
        text = self._decode(self._held)
        self._held = []
        return text


class UpToStop:
    """Passes text on up to the first stop sequence; what may be the beginning of one waits for what follows."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self._reached = False

    def add(self, text: str) -> str:
        if self._reached:
            return ""
        self._held += text
        told = cut_at(self._held, self._stops)
        if told != self._held:
            self._reached = True
            return told
        told = self._held[: len(self._held) - self._doubtful()]
        self._held = self._held[len(told) :]
        return told

    def rest(self) -> str:
        """What is left at the turn's end: it began like a stop sequence and was none."""
        return "" if self._reached else self._held

    def _doubtful(self) -> int:
        """Length of the longest end of the held text that a stop sequence begins with."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
