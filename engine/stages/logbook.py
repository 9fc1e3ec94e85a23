"""Warnings of our own modules into the run's event log, where the terminal and the report show them."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.contract.events import Event, LogLine


class _ToEvents(logging.Handler):
    def __init__(self, append: Callable[[LogLine], Event]) -> None:
        super().__init__(logging.WARNING)
        self._append = append

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._append(LogLine.model_validate({"level": level, "message": record.getMessage()}))


@contextmanager
def warnings_as_events(append: Callable[[LogLine], Event]) -> Iterator[None]:
    """While open, every warning of ``engine.*`` and ``sandbox.*`` becomes a ``log.line`` event."""
    handler = _ToEvents(append)
    loggers = [logging.getLogger(name) for name in ("engine", "sandbox")]
    for each in loggers:
        each.addHandler(handler)
        each.propagate = False
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(handler)
            each.propagate = True
