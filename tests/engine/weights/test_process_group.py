"""The process group itself, its members in threads: equal bytes at every receiver, and an end to every wait."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from engine.learner.base import TransferGroup
from engine.weights.ports import reserved_port
from engine.weights.process_group import GroupMember

SENT = [
    torch.linspace(-1, 1, 1000).reshape(10, 100),
    torch.tensor(3.5),
    torch.arange(12).reshape(3, 4).to(torch.bfloat16).T,  # not contiguous
    torch.ones(0, 5),
]


@pytest.fixture
def meet():
    """Joins ``world`` members on threads of their own; a rank in ``absent`` never comes."""
    with ThreadPoolExecutor(8) as threads:

        def joined(world: int, absent: tuple[int, ...] = (), timeout_s: float = 20.0) -> list[Future[GroupMember]]:
            with reserved_port("127.0.0.1") as port:
                group = TransferGroup("127.0.0.1", port, world)
                joins = [
                    threads.submit(GroupMember.join, group, rank, timeout_s=timeout_s)
                    for rank in range(world)
                    if rank not in absent
                ]
                for join in joins:
                    join.exception()  # all have come or given up: the port is theirs until then
            return joins

        joined.threads = threads
        yield joined


def test_every_receiver_has_what_was_sent_bit_by_bit(meet) -> None:
    sender, *receivers = (join.result() for join in meet(3))
    got = [meet.threads.submit(lambda r=r: [r.receive(t.dtype, tuple(t.shape)) for t in SENT]) for r in receivers]
    for tensor in SENT:
        sender.send(tensor)
    for tensors in got:
        for ours, theirs in zip(SENT, tensors.result(), strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert torch.equal(ours, theirs)
    for member in (sender, *receivers):
        member.leave()
        member.leave()


def test_who_has_left_takes_no_part(meet) -> None:
    sender, receiver = (join.result() for join in meet(2))
    sender.leave()
    receiver.leave()
    with pytest.raises(RuntimeError, match="has left"):
        sender.send(SENT[0])


def test_a_member_that_leaves_ends_the_senders_wait(meet) -> None:
    sender, receiver = (join.result() for join in meet(2, timeout_s=60))
    receiver.leave()
    with pytest.raises(RuntimeError) as failed:
        sender.send(torch.zeros(10_000_000))
    assert "Timed out" not in str(failed.value), "told by the connection"
    sender.leave()


def test_a_member_that_never_comes_is_not_waited_for_without_end(meet) -> None:
    for join in meet(3, absent=(2,), timeout_s=1.0):
        with pytest.raises((RuntimeError, OSError)):
            join.result()


def test_an_unknown_backend_is_named() -> None:
    with reserved_port("127.0.0.1") as port, pytest.raises(ValueError, match="'carrier-pigeon'"):
        GroupMember.join(TransferGroup("127.0.0.1", port, 1, "carrier-pigeon"), 0)
