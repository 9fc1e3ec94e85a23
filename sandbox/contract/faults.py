"""What is wrong with a request, in the words that every door of the sandbox uses."""

from pydantic import ValidationError


def first_fault(error: ValidationError) -> tuple[str | None, str]:
    """The first wrong field, as a dotted path (None: the whole), and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ".".join(str(part) for part in first["loc"]) or None, first["msg"]
