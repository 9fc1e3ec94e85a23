"""Tasks for ``test_celery.py``: what a mistake or a bad day could make of one. Files tell what was done."""

import time
from pathlib import Path

from webapp.config.celery import app


@app.task(name="tests.note")
def note(path: str) -> None:
    Path(path).touch()


@app.task(name="tests.out_of_memory")
def out_of_memory(path: str) -> None:
    Path(path).touch()
    raise MemoryError


@app.task(name="tests.long")
def long(begun: str, until: str) -> None:
    """Holds its process until somebody makes the file ``until``."""
    Path(begun).touch()
    while not Path(until).exists():
        time.sleep(0.05)
