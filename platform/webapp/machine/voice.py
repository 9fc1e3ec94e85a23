"""What `up` says: lines with the time since its start, on the terminal and in ``var/logs/up.log``."""

import time
from collections.abc import Callable
from pathlib import Path


class Voice:
    """Called with a text, says it."""

    def __init__(self, write: Callable[[str], object], log: Path) -> None:
        self._write = write
        self._log = log
        self._begun = time.monotonic()

    def __call__(self, text: str) -> None:
        line = f"{time.monotonic() - self._begun:6.1f} s  {text}\n"
        with self._log.open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}")
        self.show(line)

    def show(self, text: str) -> None:
        """On the terminal only: what no log should keep."""
        try:
            self._write(text)
        except OSError:  # the terminal was closed, which is no reason not to go on
            self._write = lambda text: None


def box(lines: list[str]) -> str:
    """Lines in a frame that is found again in a terminal full of others."""
    width = max(map(len, lines))
    edge = "+" + "-" * (width + 4) + "+\n"
    return edge + "".join(f"|  {line:<{width}}  |\n" for line in lines) + edge
