"""The messages of a session survive the way, and nothing that a process makes up is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.backend.sessions.cell_protocol import (
    ANSWER_BYTES,
    INLINE_BYTES,
    MAX_ORDER,
    NONCE_BYTES,
    Order,
    decode_answer,
    decode_order,
    encode_answer,
    encode_order,
)

nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)


@given(st.builds(Order, nonces, st.integers(0, 2**64 - 1), st.binary(max_size=99), st.booleans(), st.booleans()))
def test_orders_survive(order: Order) -> None:
    assert decode_order(encode_order(order)) == order


def test_the_longest_order_fits() -> None:
    assert len(encode_order(Order(bytes(NONCE_BYTES), 0, bytes(INLINE_BYTES), False, True))) == MAX_ORDER


@given(nonces, st.integers(0, 255))
def test_answers_survive(nonce: bytes, exit_code: int) -> None:
    assert decode_answer(encode_answer(nonce, exit_code)) == (nonce, exit_code)


@given(st.binary().filter(lambda data: len(data) != ANSWER_BYTES))
def test_other_lengths_are_no_answer(data: bytes) -> None:
    with pytest.raises(ValueError, match=f"an answer has {ANSWER_BYTES} bytes"):
        decode_answer(data)
