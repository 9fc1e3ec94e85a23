"""What only a broker with a server and several nodes can go through: losses of all three, on a real Valkey."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest

from sandbox.broker import Broker
from sandbox.broker.valkey import ValkeyBroker
from sandbox.broker.valkey.settings import Settings
from sandbox.contract import (
    MOST_REQUEST_BYTES,
    ExecRequest,
    ExecResult,
    RequestRefused,
    SandboxUnavailable,
    SessionLost,
)
from tests.sandbox.broker.support import Cluster, HungNode, OwnLoop, Programs, ValkeyServer
from tests.sandbox.support import until

pytestmark = pytest.mark.e2e
QUICK = Settings(lease_s=1, dead_s=1, absent_s=20, patience_s=10)
MakeBroker = Callable[[], Broker]


@pytest.fixture
def make_broker(shared_valkey: ValkeyServer) -> MakeBroker:
    namespace = secrets.token_hex(8)
    return lambda: ValkeyBroker(shared_valkey.url, namespace, QUICK)


@pytest.fixture
async def cluster(make_broker: MakeBroker) -> AsyncIterator[Cluster]:
    async with Cluster(make_broker, one_broker=False) as cluster:
        yield cluster


@pytest.fixture
async def on_valkey(valkey: ValkeyServer) -> AsyncIterator[Cluster]:
    """A cluster whose server the test may kill."""
    async with Cluster(lambda: ValkeyBroker(valkey.url, settings=QUICK), one_broker=False) as cluster:
        yield cluster


@pytest.fixture
def hung_node(make_broker: MakeBroker) -> Iterator[Callable[[Programs], HungNode]]:
    with ExitStack() as nodes:

        def start(programs: Programs) -> HungNode:
            node = HungNode(make_broker, programs, "hung")
            nodes.callback(node.end)
            return node

        yield start


def cell(session: str, number: int, code: str = "x") -> ExecRequest:
    return ExecRequest(id=f"{session}-{number}", code=code, session=session, cell=number)


async def test_calls_of_a_node_that_hangs_are_run_by_another_one_and_answered_once(
    cluster: Cluster, hung_node: Callable[[Programs], HungNode]
) -> None:
    hung = hung_node(first := Programs(slots=3))
    calls = [cluster.submit(ExecRequest(id=str(n), code="wait")) for n in range(3)]
    await until(lambda: len(first.started) == 3)
    hung.hang()
    await cluster.node(second := Programs(slots=3), name="healthy")
    second.go.set()
    assert {(await call).node for call in calls} == {"healthy"}
    hung.wake()
    await until(lambda: len(first.killed) == 3)  # it heard that nobody wants their answers any more
    assert sorted(second.started) == ["0", "1", "2"]


async def test_a_call_that_runs_for_longer_than_a_lease_stays_where_it_is(shared_valkey: ValkeyServer) -> None:
    namespace, short = secrets.token_hex(8), Settings(lease_s=0.4, dead_s=5)
    async with Cluster(lambda: ValkeyBroker(shared_valkey.url, namespace, short), one_broker=False) as cluster:
        await cluster.node(first := Programs())
        call = cluster.submit(ExecRequest(code="wait"))
        await until(lambda: first.started)
        await cluster.node(second := Programs())
        await asyncio.sleep(3 * short.lease_s)
        first.go.set()
        await call
        assert (len(first.started), second.started) == (1, [])


async def test_sessions_of_a_node_that_hangs_are_lost_and_those_of_others_go_on(
    cluster: Cluster, hung_node: Callable[[Programs], HungNode]
) -> None:
    hung = hung_node(first := Programs(slots=1))
    await cluster.submit(cell("lost", 0))
    running = cluster.submit(cell("lost", 1, "wait"))
    await until(lambda: len(first.started) == 2)
    waiting = cluster.submit(cell("also-lost", 0))
    await cluster.queued(1)
    await cluster.node(second := Programs())
    await cluster.client.status()
    hung.hang()
    for call in (running, waiting):
        with pytest.raises(SessionLost, match="its node hung died or cannot be reached"):
            await call
    with pytest.raises(SessionLost, match="session lost is lost"):
        await cluster.submit(cell("lost", 2))
    assert second.started == []
    for number in range(3):
        await cluster.submit(cell("new", number))
    assert second.started == ["new-0", "new-1", "new-2"]


async def test_a_call_that_takes_node_after_node_with_it_is_refused(shared_valkey: ValkeyServer) -> None:
    namespace, short = secrets.token_hex(8), Settings(lease_s=0.4, dead_s=0.4)

    def make_broker() -> Broker:
        return ValkeyBroker(shared_valkey.url, namespace, short)

    victims: list[HungNode] = []
    async with Cluster(make_broker, one_broker=False) as cluster:
        call = cluster.submit(ExecRequest(id="poison", code="wait"))
        for _ in range(short.most_tries):
            victims.append(HungNode(make_broker, programs := Programs(), "victim"))
            await until(lambda programs=programs: programs.started)
            victims[-1].hang()
        await cluster.node(last := Programs())
        with pytest.raises(SandboxUnavailable, match="3 nodes were lost while they ran this call"):
            await call
        assert last.started == []
        for victim in victims:
            victim.end()


async def test_any_client_finds_the_node_of_a_session(make_broker: MakeBroker, cluster: Cluster) -> None:
    nodes = [Programs(slots=2), Programs(slots=2), Programs(slots=2)]
    for programs in nodes:
        await cluster.node(programs)
    names = [f"s{number}" for number in range(60)]
    other = make_broker()
    await asyncio.gather(*(cluster.submit(cell(name, 0)) for name in names))
    await asyncio.gather(*(other.submit(cell(name, 1)) for name in names))
    await other.close()
    for programs in nodes:
        opened = {name.removesuffix("-0") for name in programs.started if name.endswith("-0")}
        continued = {name.removesuffix("-1") for name in programs.started if name.endswith("-1")}
        assert opened == continued != set()


async def test_a_later_cell_of_a_session_that_nobody_knows_is_lost(cluster: Cluster) -> None:
    await cluster.node(Programs())
    with pytest.raises(SessionLost, match="session gone is not known"):
        await cluster.submit(cell("gone", 3))


async def test_a_session_waits_for_the_first_node(cluster: Cluster) -> None:
    early = cluster.submit(cell("early", 0))
    await cluster.node(programs := Programs())
    assert (await early).status == "ok"
    assert programs.started == ["early-0"]


async def test_lost_connections_lose_and_double_nothing(shared_valkey: ValkeyServer, cluster: Cluster) -> None:
    await cluster.node(programs := Programs(slots=4))
    calls = [cluster.submit(ExecRequest(id=str(n), code=str(n))) for n in range(1500)]
    with shared_valkey.client() as cutter:
        for _ in range(15):
            await asyncio.sleep(0.02)
            cutter.client_kill_filter(_type="normal", skipme=True)
    assert [(await call).stdout for call in calls] == [str(n) for n in range(1500)]
    assert sorted(programs.started, key=int) == [str(n) for n in range(1500)]


async def test_a_valkey_that_comes_back_empty_costs_no_call_no_session_and_no_program(
    valkey: ValkeyServer, on_valkey: Cluster
) -> None:
    await on_valkey.node(programs := Programs(slots=2))
    await on_valkey.submit(cell("s", 0))
    running = on_valkey.submit(ExecRequest(id="running", code="wait"))
    in_session = on_valkey.submit(cell("s", 1, "wait"))
    await until(lambda: len(programs.started) == 3)
    waiting = [on_valkey.submit(ExecRequest(id=f"waiting-{n}", code="x")) for n in range(20)]
    await on_valkey.queued(20)
    valkey.kill()
    meanwhile = on_valkey.submit(ExecRequest(id="meanwhile", code="x"))
    valkey.start()
    await on_valkey.queued(23)  # all of them again, and the one of meanwhile
    programs.go.set()
    await asyncio.gather(running, in_session, meanwhile, *waiting)
    assert (await on_valkey.submit(cell("s", 2))).status == "ok"
    assert programs.killed == []
    assert sorted(set(programs.started)) == sorted(
        ["s-0", "s-1", "s-2", "running", "meanwhile", *(f"waiting-{n}" for n in range(20))]
    )


async def test_programs_end_while_valkey_is_gone_and_their_results_come_home(
    valkey: ValkeyServer, on_valkey: Cluster
) -> None:
    await on_valkey.node(programs := Programs(slots=1))
    running = on_valkey.submit(ExecRequest(id="running", code="wait"))
    await until(lambda: programs.started)
    valkey.process.terminate()  # it stops the world by and by; the data is gone either way
    await asyncio.to_thread(valkey.process.wait)
    programs.go.set()
    valkey.start()
    assert (await running).id == "running"


async def test_an_emptied_valkey_is_noticed_without_a_lost_connection(valkey: ValkeyServer, on_valkey: Cluster) -> None:
    calls = [on_valkey.submit(ExecRequest(code=str(n))) for n in range(5)]
    await on_valkey.queued(5)
    with valkey.client() as client:
        client.flushall()
    await on_valkey.queued(5)
    await on_valkey.node(Programs())
    assert [(await call).stdout for call in calls] == list("01234")


async def test_callers_lose_patience_with_a_valkey_that_stays_away(valkey: ValkeyServer) -> None:
    broker = ValkeyBroker(valkey.url, settings=Settings(patience_s=0.4))
    early = asyncio.create_task(broker.submit(ExecRequest(code="x")))
    async with asyncio.timeout(20):
        while not (await broker.status()).queued_training:  # noqa: ASYNC110 - nothing tells us
            await asyncio.sleep(0.01)
    valkey.kill()
    late = asyncio.create_task(broker.submit(ExecRequest(code="x")))
    for call in (early, late):
        with pytest.raises(SandboxUnavailable, match=re.escape(f"Valkey at {valkey.url} cannot be used: ")):
            await call
    with pytest.raises(SandboxUnavailable, match="cannot be used"):
        await broker.status()
    with pytest.raises(SandboxUnavailable, match="cannot be used"):
        await broker.join("n1", print)
    await broker.close()


async def test_callers_lose_patience_with_a_valkey_that_takes_no_calls(valkey: ValkeyServer) -> None:
    broker = ValkeyBroker(valkey.url, settings=Settings(patience_s=0.4))
    await broker.status()  # which goes on to work
    with valkey.client() as client:
        client.config_set("maxmemory", "1")
    with pytest.raises(SandboxUnavailable, match="not allowed when used memory > 'maxmemory'"):
        await broker.submit(ExecRequest(code="x"))
    await broker.close()


async def test_a_wrong_password_is_told_at_once_and_not_shown(valkey: ValkeyServer) -> None:
    with valkey.client() as client:
        client.config_set("requirepass", "right")
    broker = ValkeyBroker(valkey.url.replace("://", "://:wr0ng@"))
    with pytest.raises(SandboxUnavailable, match="invalid username-password") as refused:
        await broker.submit(ExecRequest(code="x"))
    assert "wr0ng" not in str(refused.value)
    await broker.close()
    broker = ValkeyBroker(valkey.url.replace("://", "://:right@"))
    assert (await broker.status()).nodes == ()
    await broker.close()


async def test_a_thousand_waiting_calls_share_three_connections(valkey: ValkeyServer, on_valkey: Cluster) -> None:
    await on_valkey.node(Programs(slots=1))
    calls = [on_valkey.submit(ExecRequest(code="wait")) for _ in range(1024)]
    await on_valkey.queued(1023)
    await asyncio.gather(*(on_valkey.client.status() for _ in range(50)))
    with valkey.client() as client:
        assert len(client.client_list()) <= 3 + 3 + 1  # the client's, the node's, and this one
    for call in calls:
        call.cancel()
    await on_valkey.queued(0)


async def test_what_a_client_that_hangs_has_submitted_is_forgotten_and_comes_back_when_it_wakes(
    valkey: ValkeyServer,
) -> None:
    def make_broker() -> Broker:
        return ValkeyBroker(valkey.url, settings=Settings(lease_s=1, dead_s=1, absent_s=0.5))

    async def submitted() -> tuple[Broker, "asyncio.Task[ExecResult]"]:
        broker = make_broker()
        return broker, asyncio.create_task(broker.submit(ExecRequest(id="theirs", code="x")))

    theirs = OwnLoop()
    broker, call = theirs.run(submitted())
    async with Cluster(make_broker, one_broker=False) as cluster:
        await cluster.queued(1)
        theirs.hang()
        with valkey.client() as client:
            await until(lambda: not client.keys("*:calls:*"))
        await cluster.node(programs := Programs())
        await cluster.submit(ExecRequest(id="mine", code="x"))
        assert programs.started == ["mine"]
        theirs.wake()
        await until(call.done)
        assert programs.started == ["mine", "theirs"]
    theirs.run(broker.close())
    theirs.end()


async def test_a_request_that_is_too_large_is_refused(cluster: Cluster) -> None:
    with pytest.raises(RequestRefused, match=f"{MOST_REQUEST_BYTES} are allowed"):
        await cluster.client.submit(ExecRequest(code="x" * MOST_REQUEST_BYTES))
