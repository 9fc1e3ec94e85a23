"""At most so many calls a second for each key, the last one always: a burst ends with its end told."""

import threading
import time
from collections.abc import Callable

Later = Callable[[float, Callable[[], None]], None]

MANY = 1000


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


class Throttle:
    """Calls ``call(key)`` at once, or once at the end of the pause if asked within it. Threads may share it."""

    def __init__(
        self,
        call: Callable[[str], None],
        pause_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        later: Later = _later,
    ) -> None:
        self._call, self._pause_s, self._clock, self._later = call, pause_s, clock, later
        self._free_at: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._changing = threading.Lock()

    def __call__(self, key: str) -> None:
        with self._changing:
            if key in self._waiting:
                return
            wait = self._free_at.get(key, 0.0) - self._clock()
            if wait > 0:
                self._waiting.add(key)
            else:
                self._taken(key)
        if wait > 0:
            self._later(wait, lambda: self._at_last(key))
        else:
            self._call(key)

    def _at_last(self, key: str) -> None:
        with self._changing:
            self._waiting.discard(key)
            self._taken(key)
        self._call(key)

    def _taken(self, key: str) -> None:
        now = self._clock()
        if len(self._free_at) > MANY:
            self._free_at = {known: free_at for known, free_at in self._free_at.items() if free_at > now}
        self._free_at[key] = now + self._pause_s
