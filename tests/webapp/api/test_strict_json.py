"""JSON in: what other parsers let through and nobody can keep is refused, with its place."""

import collections
import json
from typing import Any

import pytest

from webapp.api.parsers import LimitedStream, strict_json
from webapp.api.problems import Problem, WrongInput
from webapp.api.renderers import strict_json as written


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b'{"lr": 1e400}', "too large", id="F033"),
        pytest.param(b'{"lr": -1e400}', "too large", id="overflow below"),
        (b'{"lr": NaN}', "no JSON number"),
        (b"[Infinity]", "no JSON number"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8: byte 0"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5000, "not JSON"),
    ],
)
def test_what_is_not_json_is_refused_in_words(body: bytes, said: str) -> None:
    with pytest.raises(WrongInput) as caught:
        strict_json(body)
    assert said in caught.value.said


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"recipe": {"notes": ["fine", "nul \x00"]}}, "/recipe/notes/1"),
        ({"a/b": {"~": "\x00"}}, "/a~1b/~0"),
        ({"\x00": 1}, ""),
        ({"name": "half \ud800 pair"}, "/name"),
    ],
)
def test_text_that_postgres_refuses_is_named_by_its_place(body: Any, place: str) -> None:
    with pytest.raises(WrongInput) as caught:
        strict_json(json.dumps(body).encode())
    assert caught.value.extra["errors"][0]["pointer"] == place


def test_what_is_json_comes_through_as_it_is() -> None:
    value = {"name": "naïve 🙂", "n": [1, -2.5e10, None, True], "deep": {"": {}}}
    assert strict_json(json.dumps(value).encode()) == value


def test_no_answer_ever_holds_a_number_that_json_does_not_have() -> None:
    said = written({"reward": float("nan"), "loss": [float("inf"), -float("inf"), 0.5], 3: "three"})
    assert json.loads(said) == {"reward": None, "loss": [None, None, 0.5], "3": "three"}


def test_a_stream_is_given_up_as_soon_as_it_is_too_long() -> None:
    class Endless:
        given = 0

        def read(self, size: int) -> bytes:
            self.given += size
            return b"x" * size

    source = Endless()
    stream = LimitedStream(source, 10_000)
    with pytest.raises(Problem) as caught:
        collections.deque(iter(lambda: stream.read(4_000), b""), maxlen=0)
    assert caught.value.status_code == 413
    assert source.given == 12_000
