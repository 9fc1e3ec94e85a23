"""One line that tells how far a long act is: a bar that repaints on a terminal, plain lines elsewhere."""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

REPAINT_S = 0.2
PLAIN_LINE_S = 10.0  # in a log a line now and then says that it lives, without drowning the rest
BAR_WIDTH = 24


class Progress:
    """Shows a label, a count and the elapsed seconds until the `with` block ends.

    `total` None means that only time passes. `poll`, if set, is asked for the count, for acts that tell none.
    """

    def __init__(self, label: str, total: int | None = None, stream: TextIO = sys.stdout) -> None:
        self.label = label
        self.total = total
        self.count = 0
        self.note = ""
        self.poll: Callable[[], int] | None = None
        self._stream = stream
        self._tty = stream.isatty()
        self._started = time.monotonic()
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "Progress":
        self._show()
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._ticker.join()
        if kind is None and self.total is not None:
            self.count = self.total
        self.note = "done" if kind is None else "stopped"
        self.poll = None
        self._show()
        if self._tty:
            self._write("\n")

    def text(self) -> str:
        """The line as it stands."""
        parts = [self.label]
        if self.total is not None:
            if self._tty:
                filled = BAR_WIDTH * min(self.count, self.total) // max(self.total, 1)
                parts.append("[" + "#" * filled + "." * (BAR_WIDTH - filled) + "]")
            parts.append(f"{min(self.count, self.total)}/{self.total}")
        parts.append(f"{time.monotonic() - self._started:.0f} s")
        return "  ".join([*parts, self.note] if self.note else parts)

    def _tick(self) -> None:
        while not self._ended.wait(REPAINT_S if self._tty else PLAIN_LINE_S):
            if self.poll is not None:
                self.count = self.poll()
            self._show()

    def _show(self) -> None:
        self._write(
            f"\r\033[K{self.text()[: shutil.get_terminal_size().columns - 1]}" if self._tty else self.text() + "\n"
        )

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
