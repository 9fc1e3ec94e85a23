"""What every broker has to do, asked of the one in memory and of the one on Valkey, with nodes that run coroutines."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.backend.protocol import CallLost
from sandbox.broker import Broker, MemoryBroker
from sandbox.broker.valkey import ValkeyBroker
from sandbox.broker.valkey.settings import Settings
from sandbox.contract import (
    ExecRequest,
    ExecResult,
    Priority,
    RequestRefused,
    SandboxBusy,
    SandboxUnavailable,
    SessionLost,
)
from tests.sandbox.broker.support import Cluster, Programs, ValkeyServer
from tests.sandbox.support import until

MakeCluster = Callable[..., Cluster]


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.e2e)])
def make_cluster(request: pytest.FixtureRequest) -> MakeCluster:
    """A cluster with a bound for its queues."""
    if request.param == "memory":
        return lambda most_queued=1000: Cluster(lambda: MemoryBroker(most_queued), one_broker=True)
    server: ValkeyServer = request.getfixturevalue("shared_valkey")

    def make(most_queued: int = 1000) -> Cluster:
        namespace, bounds = secrets.token_hex(8), Settings(lease_s=2, dead_s=2, most_queued=most_queued)

        def broker() -> Broker:
            return ValkeyBroker(server.url, namespace, bounds)

        return Cluster(broker, one_broker=False)

    return make


@pytest.fixture
async def cluster(make_cluster: MakeCluster) -> AsyncIterator[Cluster]:
    async with make_cluster() as cluster:
        yield cluster


def interactive(code: str = "x", **more: object) -> ExecRequest:
    return ExecRequest.model_validate({"code": code, "priority": Priority.INTERACTIVE, **more})


def training(code: str = "x", **more: object) -> ExecRequest:
    return ExecRequest.model_validate({"code": code, **more})


async def test_each_call_gets_its_own_answer_from_a_node_that_signs_it(cluster: Cluster) -> None:
    node = await cluster.node(Programs(slots=3), name="n1")
    results = await asyncio.gather(*(cluster.submit(training(str(n), id=f"call-{n}")) for n in range(50)))
    assert [(result.id, result.stdout) for result in results] == [(f"call-{n}", str(n)) for n in range(50)]
    assert {result.node for result in results} == {node.name} == {"n1"}


async def test_two_calls_with_one_id_are_two_calls(cluster: Cluster) -> None:
    await cluster.node(programs := Programs())
    same = training("a", id="same"), training("b", id="same")
    assert [result.stdout for result in await asyncio.gather(*map(cluster.submit, same))] == ["a", "b"]
    assert programs.started == ["same", "same"]


async def test_lone_surrogates_and_control_characters_survive_the_trip(cluster: Cluster) -> None:
    await cluster.node(Programs())
    text = "\ud800 \x00 \r\n \U0001f600"
    assert (await cluster.submit(training(text))).stdout == text


async def test_interactive_calls_go_before_training_calls_and_cells_before_other_calls(cluster: Cluster) -> None:
    await cluster.node(programs := Programs(slots=1))
    first = cluster.submit(training("wait", id="first"))
    await until(lambda: programs.started)
    calls = [first]
    for number, request in enumerate(
        [
            training(id="training"),
            training(id="training-2"),
            training(id="cell", session="s"),
            interactive(id="interactive"),
            interactive(id="interactive-2"),
            interactive(id="interactive-cell", session="t"),
        ]
    ):
        calls.append(cluster.submit(request))
        await cluster.queued(number + 1)
    programs.go.set()
    await asyncio.gather(*calls)
    assert programs.started == [
        *("first", "interactive-cell", "interactive", "interactive-2", "cell", "training", "training-2")
    ]


async def test_a_node_gets_no_more_calls_than_it_has_slots(cluster: Cluster) -> None:
    await cluster.node(programs := Programs(slots=2))
    calls = [cluster.submit(training("wait")) for _ in range(5)]
    await cluster.queued(3)
    assert len(programs.started) == 2
    programs.go.set()
    await asyncio.gather(*calls)


async def test_a_call_withdrawn_while_it_waits_never_runs(cluster: Cluster) -> None:
    await cluster.node(programs := Programs(slots=1))
    running = cluster.submit(training("wait"))
    await until(lambda: programs.started)
    withdrawn = cluster.submit(training(id="withdrawn"))
    await cluster.queued(1)
    withdrawn.cancel()
    await cluster.queued(0)
    programs.go.set()
    await running
    await cluster.submit(training())
    assert "withdrawn" not in programs.started


async def test_a_call_withdrawn_while_it_runs_is_killed_and_frees_its_slot(cluster: Cluster) -> None:
    await cluster.node(programs := Programs(slots=1))
    call = cluster.submit(training("wait", id="withdrawn"))
    await until(lambda: programs.started)
    call.cancel()
    await until(lambda: programs.killed == ["withdrawn"])
    assert (await cluster.submit(training("next"))).stdout == "next"


async def test_a_call_that_found_no_slot_in_time_is_told_so_and_never_runs(cluster: Cluster) -> None:
    await cluster.node(programs := Programs(slots=1))
    running = cluster.submit(training("wait", queue_s=0.2))
    await until(lambda: programs.started)
    with pytest.raises(SandboxBusy, match=r"late was not started within 0\.3 s"):
        await cluster.submit(training(id="late", queue_s=0.3))
    programs.go.set()
    assert (await running).status == "ok"  # its own time to wait was over long ago, but it did not wait
    await cluster.submit(training())
    assert "late" not in programs.started


async def test_a_full_queue_lets_submitters_wait(make_cluster: MakeCluster) -> None:
    async with make_cluster(most_queued=2) as cluster:
        calls = [cluster.submit(training("wait", id=str(n))) for n in range(6)]
        await cluster.queued(2)
        with pytest.raises(SandboxBusy, match="not started within"):
            await cluster.submit(training(queue_s=0.2))
        urgent = cluster.submit(interactive(id="urgent"))  # has a queue of its own
        await cluster.queued(3)
        await cluster.node(programs := Programs(slots=1))
        programs.go.set()
        await asyncio.gather(urgent, *calls)
        assert programs.started == ["urgent", *"012345"]


async def test_a_drained_node_lets_calls_end_and_takes_no_more(cluster: Cluster) -> None:
    node = await cluster.node(programs := Programs(slots=1))
    running = cluster.submit(training("wait"))
    await until(lambda: programs.started)
    waiting = cluster.submit(training("next"))
    draining = asyncio.create_task(node.drain(20))
    await until(lambda: node.status().draining)
    programs.go.set()
    assert (await running).status == "ok"
    await draining
    assert len(programs.started) == 1
    await cluster.node(Programs())
    assert (await waiting).stdout == "next"


async def test_what_a_drained_node_gives_back_runs_on_the_next_one_and_its_sessions_are_lost(cluster: Cluster) -> None:
    node = await cluster.node(programs := Programs(slots=2))
    call = cluster.submit(training("wait", id="call"))
    cell = cluster.submit(training("wait", id="cell", session="s"))
    await until(lambda: len(programs.started) == 2)
    waiting = cluster.submit(training(id="cell-1", session="s", cell=1))
    await cluster.queued(1)
    await node.drain(0)
    assert sorted(programs.killed) == ["call", "cell"]
    for lost in (cell, waiting):
        with pytest.raises(SessionLost, match="stopped"):
            await lost
    await cluster.node(second := Programs())
    second.go.set()
    assert (await call).status == "ok"
    assert second.started == ["call"]


@pytest.mark.parametrize("failure", [SandboxBusy, SessionLost, RequestRefused, SandboxUnavailable])
async def test_failures_keep_their_kind_and_words(cluster: Cluster, failure: type[Exception]) -> None:
    await cluster.node(programs := Programs())
    programs.failure = failure("in these words")
    with pytest.raises(failure, match=r"^in these words$") as caught:
        await cluster.submit(training("fail"))
    assert type(caught.value) is failure


async def test_a_bug_of_a_backend_is_our_failure_and_the_node_goes_on(cluster: Cluster) -> None:
    await cluster.node(programs := Programs())
    programs.failure = KeyError("a bug")
    with pytest.raises(SandboxUnavailable, match="a bug"):
        await cluster.submit(training("fail"))
    assert (await cluster.submit(training("next"))).stdout == "next"


async def test_a_call_that_its_node_lost_is_run_once_more(cluster: Cluster) -> None:
    await cluster.node(programs := Programs())
    programs.failure = CallLost("the zygote died")
    assert (await cluster.submit(training("fail once", id="a"))).status == "ok"
    with pytest.raises(SandboxUnavailable, match="the zygote died"):
        await cluster.submit(training("fail", id="b"))
    assert programs.started == ["a", "a", "b", "b"]


async def test_the_end_of_a_session_reaches_its_node(cluster: Cluster) -> None:
    await cluster.node(programs := Programs())
    await cluster.submit(training(session="s"))
    await cluster.client.end_session("s")
    await until(lambda: programs.ended_sessions == ["s"])
    await cluster.client.end_session("never-opened")


async def test_status_tells_nodes_and_queues(cluster: Cluster) -> None:
    assert (await cluster.client.status()).nodes == ()
    node = await cluster.node(programs := Programs(slots=1), name="n1")
    calls = [cluster.submit(training("wait"))]
    await until(lambda: programs.started)
    calls += [cluster.submit(training()), cluster.submit(interactive()), cluster.submit(interactive(session="s"))]
    await cluster.queued(3)
    status = await cluster.client.status()
    assert (status.queued_interactive, status.queued_training) == (2, 1)
    [seen] = status.nodes
    assert (seen.name, seen.slots, seen.tier, seen.isolation) == ("n1", 1, "none", "coroutines")
    assert 0 <= seen.seen_s < 2
    programs.go.set()
    await asyncio.gather(*calls)
    await node.drain(0)
    assert (await cluster.client.status()).nodes == ()


async def test_a_closed_broker_refuses_what_waits_and_what_comes(cluster: Cluster) -> None:
    waiting = cluster.submit(training())
    await cluster.queued(1)
    await cluster.client.close()
    with pytest.raises(SandboxUnavailable, match="closed before"):
        await waiting
    with pytest.raises(SandboxUnavailable, match="closed"):
        await cluster.submit(training())


class Fleet:
    """Calls that come and go and nodes that are stopped, as hypothesis likes it: each call has one answer, its own."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.calls: dict[int, asyncio.Task[ExecResult]] = {}

    async def play(self, moves: list[tuple[str, int]]) -> None:
        node = await self.cluster.node(Programs(slots=2))
        for move, number in moves:
            if move == "submit":
                self.calls[len(self.calls)] = self.cluster.submit(training(f"answer {len(self.calls)}"))
            elif move == "withdraw" and self.calls:
                self.calls[number % len(self.calls)].cancel()
            elif move == "restart":
                await node.drain(number % 2)
                node = await self.cluster.node(Programs(slots=1 + number % 3))
            await asyncio.sleep(0)
        answers = await asyncio.gather(*self.calls.values(), return_exceptions=True)
        for number, answer in enumerate(answers):
            assert isinstance(answer, asyncio.CancelledError) or (
                isinstance(answer, ExecResult) and answer.stdout == f"answer {number}"
            )


async def test_nodes_that_leave_in_good_order_are_not_held_against_a_call(cluster: Cluster) -> None:
    await Fleet(cluster).play([("submit", 0), *[("restart", 0)] * 6])


MOVES = st.lists(st.tuples(st.sampled_from(["submit"] * 6 + ["withdraw", "restart"]), st.integers(0, 50)), max_size=25)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_whatever_happens_each_call_is_answered_once_with_its_own_result(
    make_cluster: MakeCluster, moves: list[tuple[str, int]]
) -> None:
    async def play() -> None:
        async with asyncio.timeout(60), make_cluster() as cluster:
            await Fleet(cluster).play(moves)

    asyncio.run(play())
