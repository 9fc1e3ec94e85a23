"""Weights by broadcast: every engine or the file, never half a model, and the group made anew when somebody is new."""

import asyncio
import logging
import socket

import pytest

from engine.rollout.base import EngineUnavailable, GenerateRequest
from engine.rollout.scheduling.base import Size
from engine.weights import broadcast_link
from engine.weights.base import IncompleteWeights
from engine.weights.ports import reserved_port

GREEDY = GenerateRequest([1, 2], max_tokens=4, temperature=0.0, stop_token_ids=(0,))


async def served(parts) -> set[tuple[int, ...]]:
    """What the engines answer under their weights, each asked itself: one answer if all have the same."""
    return {tuple((await engine.generate(GREEDY)).ids) for engine in [*parts.engines, *parts.others]}


async def versions(parts) -> list[int | None]:
    return [await engine.weight_version() for engine in [*parts.engines, *parts.others]]


async def sample(parts, count: int = 8):
    async def one(task, place):
        return await place.generate(GREEDY)

    return await asyncio.wait_for(parts.pool.run(range(count), one, size=lambda task: Size("p", 2, 6)), 10)


async def test_every_engine_serves_what_the_learner_has_and_no_file_is_written(broadcasting) -> None:
    parts = await broadcasting()
    answers = []
    for version, mark in ((1, 1), (2, 2), (3, 1)):
        parts.learner.mark = mark
        await parts.link.publish(parts.learner, version)
        assert await versions(parts) == [version] * 2
        answers.append(await served(parts))
    assert [len(answer) for answer in answers] == [1, 1, 1]
    assert answers[0] == answers[2] != answers[1]
    assert parts.learner.exported == []
    assert [engine.joins for engine in parts.engines] == [1, 1], "one group for all pushes"


async def test_another_learner_makes_another_group(broadcasting) -> None:
    parts = await broadcasting()
    await parts.link.publish(parts.learner, 1)
    await parts.link.publish(parts.another_learner(), 2)
    assert [engine.joins for engine in parts.engines] == [2, 2]
    assert await versions(parts) == [2, 2]


async def test_engines_that_cannot_join_get_the_file(broadcasting, caplog) -> None:
    parts = await broadcasting(joining=1, plain=2)
    await parts.link.publish(parts.learner, 1)
    assert await versions(parts) == [1, 1, 1]
    assert len(await served(parts)) == 1
    assert (parts.engines[0].loads, parts.learner.exported) == (0, [1])
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_learner_without_engines_that_can_join_is_asked_for_a_file_only(broadcasting) -> None:
    parts = await broadcasting(joining=0, plain=2)
    await parts.link.publish(parts.learner, 1)
    assert (parts.learner.joins, parts.learner.exported) == (0, [1])
    assert await versions(parts) == [1, 1]


async def test_weights_without_the_tied_head_reach_no_engine(broadcasting) -> None:
    parts = await broadcasting()
    with pytest.raises(IncompleteWeights, match=r"without lm_head\.weight.*tied"):
        await parts.link.publish(parts.another_learner(["model.embed_tokens.weight"]), 1)
    assert await versions(parts) == [0, 0]
    assert [engine.joins for engine in parts.engines] == [0, 0]


async def test_without_a_group_the_push_goes_through_a_file(broadcasting, caplog) -> None:
    """The one that could not join leaves the others waiting for it until they give up; none is restarted."""
    parts = await broadcasting()
    parts.engines[1].fails_in = "join"
    await parts.link.publish(parts.learner, 1)
    assert await versions(parts) == [1, 1]
    assert [engine.loads for engine in parts.engines] == [1, 1]
    assert [engine.starts for engine in parts.engines] == [1, 1]
    assert "this push goes through a file: " in caplog.text
    await parts.link.publish(parts.learner, 2)
    assert [engine.loads for engine in parts.engines] == [1, 1], "the next one is a broadcast again"
    assert await versions(parts) == [2, 2]


async def test_what_fails_again_and_again_is_not_tried_any_more(broadcasting, caplog) -> None:
    parts = await broadcasting()
    parts.learner.fails_in = "broadcast"
    for version in range(1, broadcast_link.TRIES + 3):
        await parts.link.publish(parts.learner, version)
        assert {one.version for one in await sample(parts)} == {version}
    warnings = [record for record in caplog.records if record.name == broadcast_link.__name__]
    assert len(warnings) == broadcast_link.TRIES
    assert "all later ones go through a file" in warnings[-1].getMessage()


@pytest.mark.parametrize("call", ["receive", "finish"])
async def test_an_engine_that_breaks_in_an_update_never_serves_half_of_it(broadcasting, call) -> None:
    parts = await broadcasting()
    await parts.link.publish(parts.learner, 1)
    before = await served(parts)
    parts.learner.mark = 2
    parts.engines[0].fails_in = call
    await parts.link.publish(parts.learner, 2)
    made = await sample(parts)
    assert {one.version for one in made} == {2}
    assert before.isdisjoint(tuple(one.ids) for one in made)
    assert parts.learner.exported == [2]
    assert parts.engines[0].starts == 2, "what broke is started again"


async def test_a_learner_that_breaks_leaves_no_engine_with_half_a_model(broadcasting) -> None:
    parts = await broadcasting()
    parts.learner.fails_in = "broadcast"
    await parts.link.publish(parts.learner, 1)
    assert {one.version for one in await sample(parts)} == {1}
    assert parts.learner.exported == [1]


async def test_a_file_that_cannot_be_written_is_told_to_who_publishes(broadcasting) -> None:
    parts = await broadcasting(joining=0, plain=1)
    parts.learner.fails_in = "export"
    with pytest.raises(OSError, match="disk full"):
        await parts.link.publish(parts.learner, 1)


async def test_an_engine_that_died_between_two_pushes_costs_the_others_nothing(broadcasting, eventually) -> None:
    parts = await broadcasting()
    await parts.link.publish(parts.learner, 1)
    parts.engines[0].die()
    await parts.link.publish(parts.learner, 2)
    assert parts.engines[1].starts == 1
    assert parts.engines[1].loads == 0, "it took the broadcast of a group without the dead one"
    await eventually(lambda: parts.pool.restarts == 1)
    assert await versions(parts) == [2, 2]
    await parts.link.publish(parts.learner, 3)
    assert await versions(parts) == [3, 3]
    assert [engine.loads for engine in parts.engines] == [1, 0], "back in a group of all"


async def test_an_engine_that_comes_back_has_the_weights_of_when_it_was_lost(broadcasting, eventually) -> None:
    """The learner moves on while it starts: what it exports then would be other weights under the old version."""
    parts = await broadcasting()
    await parts.link.publish(parts.learner, 1)
    expected = await served(parts)
    back, start = asyncio.Event(), parts.engines[0].start

    async def slowly() -> None:
        await back.wait()
        await start()

    parts.engines[0].start = slowly
    parts.engines[0].die()
    await sample(parts)

    def update() -> None:
        parts.learner.mark = 2

    await parts.learner_thread(update)
    back.set()
    await eventually(lambda: parts.pool.restarts == 1)
    assert await served(parts) == expected
    assert parts.learner.exported == [1]


async def test_after_a_stage_its_checkpoint_is_where_restarted_engines_read(broadcasting, eventually, tmp_path) -> None:
    """The learner is closed then and exports no more; engines that serve the version are left alone."""
    parts = await broadcasting()
    await parts.link.publish(parts.learner, 7)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    parts.learner.export(checkpoint)
    parts.learner.exported.clear()
    parts.learner.fails_in = "export"
    await parts.pool.load_weights(checkpoint, 7)
    assert [engine.loads for engine in parts.engines] == [0, 0]
    parts.engines[0].die()
    await sample(parts)
    await eventually(lambda: parts.pool.restarts == 1)
    assert await versions(parts) == [7, 7]
    assert len(await served(parts)) == 1


async def test_an_export_that_fails_in_the_background_is_the_engines_fault(broadcasting) -> None:
    parts = await broadcasting(joining=1)
    await parts.link.publish(parts.learner, 1)
    parts.learner.fails_in = "export"
    parts.engines[0].die()
    with pytest.raises(EngineUnavailable, match="disk full"):
        await sample(parts)


async def test_a_push_that_is_cancelled_ends_first(broadcasting, gate, eventually) -> None:
    """Left half-way, the learner would wait for engines that wait for it."""
    hold = gate()
    parts = await broadcasting(joining=1, pace=hold)
    await parts.link.publish(parts.learner, 1)
    turn = asyncio.ensure_future(parts.engines[0].generate(GREEDY))
    await hold.reached.wait()
    push = asyncio.ensure_future(parts.link.publish(parts.learner, 2))
    await eventually(lambda: not parts.engines[0]._accepting.is_set())
    push.cancel()
    await asyncio.sleep(0)
    hold.open.set()
    with pytest.raises(asyncio.CancelledError):
        await push
    await turn
    assert await parts.engines[0].weight_version() == 2


def test_a_reserved_port_is_given_to_nobody_and_its_owner_can_listen() -> None:
    with reserved_port("127.0.0.1") as port, reserved_port("127.0.0.1") as other:
        assert port != other
        with socket.create_server(("127.0.0.1", port)) as server:
            assert server.getsockname()[1] == port
        for _ in range(64):
            with socket.socket() as somebody:
                somebody.bind(("127.0.0.1", 0))
                assert somebody.getsockname()[1] not in (port, other)
