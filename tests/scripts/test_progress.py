"""The progress line: repainted on a terminal, a line at a time elsewhere."""

import io

import pytest

from scripts.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_whole_lines_with_first_and_last_count() -> None:
    stream = io.StringIO()
    with Progress("packages", total=3, stream=stream) as progress:
        progress.count = 2
    first, last = stream.getvalue().splitlines()
    assert first.split() == ["packages", "0/3", "0", "s"]
    assert last.split() == ["packages", "3/3", "0", "s", "done"]


def test_a_terminal_gets_one_line_with_a_full_bar() -> None:
    stream = Terminal()
    with Progress("packages", total=3, stream=stream):
        pass
    assert stream.getvalue().count("\n") == 1
    assert "[########################]  3/3" in stream.getvalue()


def stop_after_one(stream: io.StringIO) -> None:
    with Progress("packages", total=3, stream=stream) as progress:
        progress.count = 1
        raise ValueError("full disk")


def test_a_failure_is_not_shown_as_done() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError, match="full disk"):
        stop_after_one(stream)
    assert stream.getvalue().splitlines()[-1].split() == ["packages", "1/3", "0", "s", "stopped"]
