"""How a zygote that cannot become ready says at which step."""

from collections.abc import Iterator
from contextlib import contextmanager


class StepFailed(Exception):
    """A step towards readiness failed; the text names it."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Name what is tried inside, for the one who reads the error. Raises `StepFailed`."""
    try:
        yield
    except Exception as error:
        raise StepFailed(f"cannot {name}: {error}") from error
