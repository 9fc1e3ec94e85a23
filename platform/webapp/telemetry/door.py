"""The door of ingest: what may come in. Texts are made storable, numbers and names have to fit into their columns.

The engine escapes NUL and lone surrogates before it writes; here it is done again, because a batch may come from
anywhere. What cannot be mended is refused as a whole with every wrong field named (``Unacceptable``): a step that is
negative, or that JavaScript could not tell from its neighbour (they lie above 2**53, the columns end at 2**31 - 1).
Leaves out HTTP (``views.py``) and the order of events (``ingest.py``).
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from engine.contract.base import visible
from engine.contract.delivery import Batch
from webapp.runs.models import StageRun
from webapp.telemetry.models import MetricPoint
from webapp.trajectories.models import Group, ToolCall, Trajectory, Turn

LARGEST = 2**31 - 1
LATEST = 32503680000.0  # the year 3000
MOST_SAID = 20
LONGEST_ENGINE = 40

Fault = tuple[str, str]


class Unacceptable(Exception):
    """A batch that cannot be taken in. ``faults``: JSON pointer -> what was expected, and what was given."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{place or 'the body'}: {said}" for place, said in faults.items()))
        self.faults = dict(faults)


def parse(body: bytes) -> Batch:
    """A batch from JSON. Raises ``Unacceptable``."""
    try:
        data = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise Unacceptable({"": "nested too deeply"}) from error
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, integers of thousands of digits
        raise Unacceptable({"": f"not JSON: {error}"}) from error
    try:
        return Batch.model_validate(storable(data))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[:MOST_SAID]
        raise Unacceptable({pointer(item["loc"]): f"{item['msg']}{_given(item)}" for item in found}) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number: send null and name it in non_finite")


def _given(item: Mapping[str, Any]) -> str:
    return "" if item["type"] in ("missing", "extra_forbidden") else f" (given: {item['input']!r:.80})"


def pointer(place: tuple[int | str, ...]) -> str:
    """pydantic's place as a JSON pointer, without the event's type that it puts behind ``body``."""
    parts = [str(part) for at, part in enumerate(place) if at == 0 or place[at - 1] != "body"]
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def storable(data: Any) -> Any:
    """JSON-like data with every text, keys too, as it can be stored."""
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, dict):
        return {visible(key) if isinstance(key, str) else key: storable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [storable(value) for value in data]
    return data


def admit(batch: Batch) -> Batch:
    """The batch with every text as it can be stored. Raises ``Unacceptable``."""
    # Only NUL can be left in a validated model, and nearly no batch holds one: look before copying everything.
    if "\\u0000" in batch.model_dump_json():
        batch = Batch.model_validate(storable(batch.model_dump()))
    faults = dict(_faults(batch))
    if faults:
        raise Unacceptable(dict(list(faults.items())[:MOST_SAID]))
    return batch


def _longest(model: Any, field: str) -> int:
    length: int = model._meta.get_field(field).max_length
    return length


# Fields of events and trajectories, by name, whose columns are limited.
_LONGEST = {
    "stage": _longest(StageRun, "name"),
    "group": _longest(Group, "name"),
    "outcome": _longest(Group, "outcome"),
    "verdict": _longest(Trajectory, "verdict"),
    "role": _longest(Turn, "role"),
    "status": _longest(ToolCall, "status"),
    "engine": LONGEST_ENGINE,
}
_LONGEST_KEY = _longest(MetricPoint, "key") - len("engine..") - LONGEST_ENGINE
_NON_FINITE = ("nan", "inf", "-inf")
# May be null, and a number that is none is.
_NULLABLE = {"reward", "penalty", "advantage"}


def _faults(batch: Batch) -> Iterator[Fault]:
    yield from _number("/attempt", batch.attempt)
    for place, event in enumerate(batch.events):
        if not 0 <= event.at < LATEST:
            yield f"/events/{place}/at", f"expected Unix time in seconds (given: {event.at})"
        yield from _number(f"/events/{place}/seq", event.seq)
        yield from _model(f"/events/{place}/body", event.body)
    for place, trajectory in enumerate(batch.trajectories):
        yield from _model(f"/trajectories/{place}", trajectory)


def _model(place: str, model: BaseModel) -> Iterator[Fault]:
    for name, value in model:
        yield from _value(f"{place}/{name}", name, value)


def _value(place: str, name: str, value: object) -> Iterator[Fault]:
    if isinstance(value, str):
        if len(value) > _LONGEST.get(name, len(value)):
            yield place, f"expected at most {_LONGEST[name]} characters (given: {len(value)})"
    elif isinstance(value, int):
        yield from _number(place, value)
    elif isinstance(value, float):
        if not math.isfinite(value) and name not in _NULLABLE:
            yield place, f"expected a finite number (given: {value})"
    elif isinstance(value, BaseModel):
        yield from _model(place, value)
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from _value(f"{place}/{number}", name, item)
    elif isinstance(value, Mapping) and name != "arguments":
        yield from _named(place, name, value)


def _named(place: str, name: str, values: Mapping[str, object]) -> Iterator[Fault]:
    """Metrics, seconds, counts of statuses: what makes keys of series; and which metrics were not finite."""
    for key, value in values.items():
        if len(key) > _LONGEST_KEY:
            yield place + pointer((key,)), f"expected a name of at most {_LONGEST_KEY} characters"
        if name == "non_finite" and value not in _NON_FINITE:
            yield place + pointer((key,)), f"expected one of {', '.join(_NON_FINITE)} (given: {value!r:.20})"
        if isinstance(value, int):
            yield from _number(place + pointer((key,)), value)


def _number(place: str, value: int) -> Iterator[Fault]:
    if not 0 <= value <= LARGEST:
        yield place, f"expected a whole number from 0 to {LARGEST} (given: {value})"
