"""The door: what may come in, and how what may not is named."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.base import visible
from engine.contract.delivery import Batch
from engine.contract.events import EngineLoad, LogLine, SandboxLoad, StepFinished
from tests.webapp.telemetry.telling import Attempt, group, shipped, step
from webapp.telemetry.door import LARGEST, Unacceptable, admit, parse, storable


def faults(call: Any) -> dict[str, str]:
    with pytest.raises(Unacceptable) as refused:
        call()
    return refused.value.faults


def event(**changes: Any) -> dict[str, Any]:
    body = {"type": "step.finished", "stage": "rl", "step": 1, "metrics": {"loss": 0.5}}
    return {"attempt": 1, "seq": 1, "at": 1.0, "body": {**body, **changes}}


def body_of(**changes: Any) -> bytes:
    return json.dumps({"attempt": 1, "events": [event(**changes)]}).encode()


def test_what_the_engine_sends_comes_in_as_it_is() -> None:
    batch = Attempt().tell(step(1), LogLine(message="wörd"), group(), trajectories=shipped(2))
    assert parse(batch.model_dump_json().encode()) == admit(batch) == batch


@pytest.mark.parametrize(
    ("body", "place", "said"),
    [
        (b"{", "", "not JSON"),
        (b"\xff", "", "not JSON"),
        (b"[]", "", "dictionary"),
        (b"[" * 100_000, "", "nested too deeply"),
        (b'{"attempt": 1, "events": NaN}', "", "NaN is no JSON number"),
        (b'{"attempt": ' + b"9" * 5000 + b"}", "", "not JSON"),
        (b"{}", "/attempt", "required"),
        (b'{"attempt": 0}', "/attempt", "greater than or equal to 1"),
        (b'{"attempt": 1, "note": 2}', "/note", "not permitted"),
        (body_of(step=1.5), "/events/0/body/step", "valid integer"),
        (body_of(stage=None), "/events/0/body/stage", "valid string"),
        (body_of(metrics={"loss": "high"}), "/events/0/body/metrics/loss", "valid number"),
        (body_of(metrics=[1]), "/events/0/body/metrics", "valid dictionary"),
        (body_of(metrics={"loss": "nan"}), "/events/0/body/metrics/loss", "finite number"),
        (body_of(type="step.undone"), "/events/0/body", "step.undone"),
        (b'{"attempt": 1, "events": [{"attempt": 2, "seq": 1, "at": 1, "body": {"type": "run.heartbeat"}}]}', "", "of"),
    ],
)
def test_what_is_no_batch_is_named(body: bytes, place: str, said: str) -> None:
    found = faults(lambda: parse(body))
    assert list(found) == [place]
    assert said in found[place]


def test_every_wrong_field_is_named() -> None:
    batch = {"attempt": 1, "events": [event(step="x"), {**event(), "at": None}], "trajectories": [{}]}
    places = faults(lambda: parse(json.dumps(batch).encode()))
    assert {"/events/0/body/step", "/events/1/at", "/trajectories/0/file"} <= set(places)


def test_a_number_that_overflows_is_not_finite() -> None:
    batch = parse(body_of(metrics={"loss": 1}).replace(b'"loss": 1', b'"loss": 1e400'))
    assert isinstance(batch.events[0].body, StepFinished)
    assert (batch.events[0].body.metrics, batch.events[0].body.non_finite) == ({"loss": None}, {"loss": "inf"})


@pytest.mark.parametrize(
    ("batch", "place", "said"),
    [
        (Attempt().tell(step(LARGEST + 1, loss=1.0)), "/events/0/body/step", str(LARGEST)),
        (Attempt().tell(step(-1, loss=1.0)), "/events/0/body/step", "-1"),
        (Attempt().tell(step(1, "s" * 51)), "/events/0/body/stage", "at most 50 characters"),
        (Attempt().tell(step(1, **{"k/" * 50: 1.0})), "/events/0/body/metrics/" + "k~1" * 50, "at most"),
        (Attempt().tell(group(tool_calls=-1)), "/events/0/body/tool_calls", "0 to"),
        (Attempt().tell(EngineLoad(stage="rl", step=1, engine="e" * 41)), "/events/0/body/engine", "at most 40"),
        (Attempt(2**31).tell(), "/attempt", "0 to"),
        (Attempt().tell(trajectories=shipped(1, 1, seconds=float("inf"))), "/trajectories/0/seconds", "finite"),
        (Attempt().tell(trajectories=shipped(1, 1, first_version=-1)), "/trajectories/0/first_version", "0 to"),
    ],
)
def test_what_does_not_fit_into_a_column_is_named(batch: Batch, place: str, said: str) -> None:
    found = faults(lambda: admit(batch))
    assert list(found) == [place]
    assert said in found[place]


@pytest.mark.parametrize("at", [-1.0, float("nan"), float("inf"), 1e18])
def test_a_time_that_is_none_is_named(at: float) -> None:
    told = Attempt().tell(step(1))
    wrong = told.model_copy(update={"events": (told.events[0].model_copy(update={"at": at}),)})
    assert list(faults(lambda: admit(wrong))) == ["/events/0/at"]


def test_counts_of_statuses_and_marks_of_numbers_are_looked_at_too() -> None:
    load = SandboxLoad(stage="rl", step=1, calls=1, statuses={"ok": -1}, queued_s=0.0, wall_s=0.0)
    marked = StepFinished(stage="rl", step=1, metrics={"a": None}, non_finite={"a": "huge"})
    found = faults(lambda: admit(Attempt().tell(load, marked)))
    assert list(found) == ["/events/0/body/statuses/ok", "/events/1/body/non_finite/a"]


def test_lone_surrogates_and_nul_come_in_visibly() -> None:
    body = {"type": "log.line", "message": "a\ud800b\x00"}
    batch = parse(json.dumps({"attempt": 1, "events": [{"attempt": 1, "seq": 1, "at": 1.0, "body": body}]}).encode())
    assert isinstance(batch.events[0].body, LogLine)
    assert batch.events[0].body.message == "a\\ud800b\\x00"


TEXT = st.text(st.sampled_from("a\\\x00\ud800é0"), max_size=4)
JSON_LIKE = st.recursive(
    TEXT | st.integers(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXT, below, max_size=3),
    max_leaves=6,
)


def texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, list):
        yield from (text for item in data for text in texts(item))
    elif isinstance(data, dict):
        yield from (text for pair in data.items() for item in pair for text in texts(item))


@given(JSON_LIKE)
def test_whatever_comes_in_can_be_stored_and_what_could_be_is_as_it_was(data: Any) -> None:
    stored = storable(data)
    for text in texts(stored):
        assert "\x00" not in text
        text.encode("utf-8")
    if all(visible(text) == text for text in texts(data)):
        assert stored == data
