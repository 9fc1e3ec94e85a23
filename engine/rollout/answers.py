"""Parts of what inference servers answer, read strictly: a field that is missing or odd is a ``ValueError``.

Nothing is filled in and nothing is mended: what a rollout is learned from is what the server said, or an error that
tells what was expected. Leaves out whole answers (one file for each kind of engine) and the wire
(``server_client.py``).
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import orjson

UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError)
"""What reading an answer of another form than expected raises."""

_LABEL = re.compile(r'(\w+)="([^"]*)"')


def from_json(text: str) -> Any:
    """What the JSON says: in half of the time that the standard library takes, for a long turn holds up everything.

    NaN is none. A server's word for it is null, which is no log-probability either.
    """
    return orjson.loads(text)


def token_ids(values: Any) -> list[int]:
    """Token ids as they came."""
    if not isinstance(values, list) or not all(type(value) is int and value >= 0 for value in values):
        raise ValueError(f"expected a list of token ids, got {str(values)[:80]}")
    return values


def log_probabilities(values: Sequence[Any], ids: Sequence[int]) -> list[float]:
    """One finite log-probability for each of ``ids``."""
    if len(values) != len(ids):
        raise ValueError(f"expected one log-probability a token, got {len(ids)} tokens with {len(values)}")
    odd = [value for value in values if not isinstance(value, int | float) or not math.isfinite(value)]
    if odd:
        raise ValueError(f"expected finite log-probabilities, got {odd[0]!r}")
    return [float(value) for value in values]


def version_number(label: Any) -> int:
    """A weight version as we label it."""
    if not isinstance(label, str) or not label.isdecimal():
        raise ValueError(f"expected a weight version that is a number, got {label!r}")
    return int(label)


def prometheus(text: str, prefix: str) -> tuple[dict[str, float], dict[str, dict[str, str]]]:
    """Of the metrics ``<prefix>:<name>``: the sum of each one's lines, and the labels of its last line."""
    values: dict[str, float] = {}
    labels: dict[str, dict[str, str]] = {}
    for name, labelled, value in re.findall(rf"^{prefix}[:_](\w+)(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE):
        values[name] = values.get(name, 0.0) + float(value)
        labels[name] = dict(_LABEL.findall(labelled))
    return values, labels
