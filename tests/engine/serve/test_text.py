"""Text while it comes: no piece of a character is told, nothing from a stop sequence on, and nothing is lost."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.serve.text import Characters, UpToStop, cut_at


def of_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def pieces(whole: Sequence[object], cuts: list[int]) -> list[Sequence[object]]:
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    return [whole[start:end] for start, end in pairwise(ends)]


CUTS = st.lists(st.integers(0, 60), max_size=30)


@given(text=st.text(max_size=40), cuts=CUTS)
def test_characters_come_whole_however_their_bytes_are_cut(text: str, cuts: list[int]) -> None:
    characters = Characters(of_bytes)
    told = [characters.add(piece) for piece in pieces(list(text.encode()), cuts)]
    assert "".join(told) + characters.rest() == text
    assert "\ufffd" in text or not any("\ufffd" in each for each in told)


@given(raw=st.binary(max_size=40))
def test_bytes_that_are_no_text_are_told_too_and_do_not_pile_up(raw: bytes) -> None:
    characters = Characters(of_bytes)
    told = "".join(characters.add([byte]) for byte in raw) + characters.rest()
    assert [c for c in told if c != "\ufffd"] == [c for c in of_bytes(raw) if c != "\ufffd"]


def test_a_token_that_ends_no_character_is_told_with_the_next_one() -> None:
    first, second = "é".encode()
    characters = Characters(of_bytes)
    assert [characters.add([97, first]), characters.add([second]), characters.rest()] == ["a", "é", ""]


SHORT = st.text(alphabet="ab", min_size=1, max_size=3)


@given(text=st.text(alphabet="abc", max_size=30), stops=st.lists(SHORT, max_size=3), cuts=CUTS)
def test_a_stream_is_cut_where_the_whole_text_would_be(text: str, stops: list[str], cuts: list[int]) -> None:
    up_to_stop = UpToStop(stops)
    told = [up_to_stop.add(str(piece)) for piece in pieces(text, cuts)]
    assert "".join(told) + up_to_stop.rest() == cut_at(text, stops)


def test_only_what_may_begin_a_stop_sequence_waits() -> None:
    up_to_stop = UpToStop(["END"])
    assert [up_to_stop.add("an E"), up_to_stop.add("ND of")] == ["an ", ""]
    other = UpToStop(["END"])
    assert [other.add("an E"), other.add("gg"), other.rest()] == ["an ", "Egg", ""]
