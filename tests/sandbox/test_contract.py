"""Requests and limits refuse what they do not know, by name, and survive what models write."""

import pytest
from pydantic import ValidationError

from sandbox.backend.outcome import claimed_error
from sandbox.contract import ExecRequest, Limits


def test_unknown_limit_is_named() -> None:
    with pytest.raises(ValidationError, match="memory_gb"):
        Limits.model_validate({"memory_gb": 1})


@pytest.mark.parametrize("field", ["wall_s", "cpu_s", "memory_mb", "output_bytes", "processes", "scratch_mb"])
def test_limits_are_positive_and_described(field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        Limits.model_validate({field: 0})
    assert Limits.model_fields[field].description


def test_sessions_are_refused_clearly() -> None:
    with pytest.raises(ValueError, match="sessions are not available yet"):
        ExecRequest(code="", session="s1")


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
