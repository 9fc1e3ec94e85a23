"""Requests and limits refuse what they do not know, by name, and survive what models write."""

import pytest
from pydantic import ValidationError

from sandbox.backend.outcome import claimed_error
from sandbox.contract import (
    ExecRequest,
    Limits,
    Priority,
    RequestRefused,
    SandboxBusy,
    SandboxUnavailable,
    SessionLost,
)


def test_unknown_limit_is_named() -> None:
    with pytest.raises(ValidationError, match="memory_gb"):
        Limits.model_validate({"memory_gb": 1})


@pytest.mark.parametrize("field", ["wall_s", "cpu_s", "memory_mb", "output_bytes", "processes", "scratch_mb"])
def test_limits_are_positive_and_described(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Limits.model_validate({field: 0})
    assert Limits.model_fields[field].description


def test_a_call_is_alone_and_for_training_unless_it_says_more() -> None:
    request = ExecRequest(code="")
    assert (request.session, request.cell, request.priority, request.queue_s) == (None, 0, Priority.TRAINING, None)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "\n", "x" * 129, "\ud800"])
def test_names_of_sessions_are_plain(name: str) -> None:
    with pytest.raises(ValidationError, match="session"):
        ExecRequest(code="", session=name)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"cell": 1}, "cell must be 0 where session is null"),
        ({"cell": -1, "session": "s"}, "cell"),
        ({"queue_s": 0}, "queue_s"),
        ({"queue_s": float("inf")}, "queue_s"),
        ({"priority": "urgent"}, "interactive"),
    ],
)
def test_what_a_request_cannot_be_is_named(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        ExecRequest.model_validate({"code": "", **fields})


def test_our_failures_are_one_family_and_a_wrong_request_is_not_of_it() -> None:
    assert issubclass(SandboxBusy, SandboxUnavailable)
    assert issubclass(SessionLost, SandboxUnavailable)
    assert not issubclass(RequestRefused, SandboxUnavailable)


def test_lone_surrogates_survive() -> None:
    assert ExecRequest(code="'\udc80'", stdin="\ud800").stdin == "\ud800"


@pytest.mark.parametrize(
    ("stderr", "claim"),
    [
        ('Traceback (most recent call last):\n  File "main.py", line 2, in <module>\nE\n', ("E", "", 2)),
        ('  File "main.py", line 1\n    def\n       ^\nSyntaxError: bad\n', ("SyntaxError", "bad", 1)),
        (
            '  File "main.py", line 3, in f\n  File "/usr/x.py", line 9, in g\na.b.E: two\nlines\n',
            ("a.b.E", "two\nlines", 3),
        ),
        ("warn: nothing happened\n", None),
        ("", None),
    ],
)
def test_claims_are_read_from_the_tail(stderr: str, claim: tuple[str, str, int] | None) -> None:
    error = claimed_error(stderr)
    assert (error and (error.type, error.message, error.line)) == claim
