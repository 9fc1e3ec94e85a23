"""Query strings, taken in without trust: no NUL (Postgres refuses it), no endless text.

Leaves out what the parameters mean: the views and ``trajectory_filters.py`` know.
"""

from django.http import HttpRequest

LONGEST = 200


def plain(request: HttpRequest, name: str) -> str:
    """A parameter of the query string, cleaned; empty when it is missing."""
    return cleaned(request.GET.get(name, ""))


def cleaned(text: str) -> str:
    return text.replace("\x00", "").encode("utf-8", "replace").decode()[:LONGEST].strip()
