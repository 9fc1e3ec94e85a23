"""Announcements: at most so many a second, and the last is never lost."""

from collections.abc import Callable

from webapp.telemetry import throttle
from webapp.telemetry.throttle import Throttle


class Time:
    """A clock that stands still until it is moved, and what waits for it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.waiting.append((self.now + seconds, call))

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        due = [call for at, call in self.waiting if at <= self.now]
        self.waiting = [(at, call) for at, call in self.waiting if at > self.now]
        for call in due:
            call()


def throttled(time: Time) -> tuple[Throttle, list[tuple[str, float]]]:
    told: list[tuple[str, float]] = []
    made = Throttle(lambda key: told.append((key, time.now)), 0.25, clock=lambda: time.now, later=time.later)
    return made, told


def test_the_first_is_told_at_once_and_a_burst_ends_with_its_end_told() -> None:
    time = Time()
    tell, told = throttled(time)
    for _ in range(10):
        tell("a")
    assert told == [("a", 100.0)]
    time.pass_by(0.25)
    assert told == [("a", 100.0), ("a", 100.25)]
    time.pass_by(10)
    assert len(told) == 2


def test_at_most_four_a_second() -> None:
    time = Time()
    tell, told = throttled(time)
    for _ in range(200):
        tell("a")
        time.pass_by(0.01)
    assert len(told) <= 2 * 4 + 1
    assert len(told) >= 2 * 4 - 1


def test_keys_do_not_wait_for_each_other() -> None:
    time = Time()
    tell, told = throttled(time)
    tell("a")
    tell("b")
    assert [key for key, _ in told] == ["a", "b"]


def test_runs_that_are_over_are_forgotten(monkeypatch: object) -> None:
    time = Time()
    tell, _ = throttled(time)
    for number in range(throttle.MANY + 1):
        tell(str(number))
        time.pass_by(1)
    tell("last")
    assert len(tell._free_at) == 1
