"""The socket of a run: who may watch, that a viewer misses nothing and gets nothing twice, and what it costs others."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from django.contrib.sessions.models import Session
from django.db import OperationalError
from django.test import Client

from tests.webapp.live import rows
from tests.webapp.live.sockets import Viewer
from tests.webapp.support import make_project, make_run, make_user
from webapp.accounts.models import User
from webapp.config.asgi import application
from webapp.live import consumer, reads
from webapp.live.announce import announce_run, group_of
from webapp.runs.models import Run
from webapp.runs.queries import run_summary
from webapp.telemetry.queries import series

pytestmark = pytest.mark.django_db(transaction=True)
CASES = {
    case["id"]: case
    for case in map(json.loads, Path("tests/cases/platform.jsonl").read_text().splitlines())
    if case["kind"] in ("channels", "api")
}
Open = Callable[..., Awaitable[Viewer]]


def case(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [CASES[name]], ids=[name])


@pytest.fixture
def owner() -> User:
    return make_user()


@pytest.fixture
def run(owner: User) -> Run:
    return make_run(make_project(owner), state="running", revision=1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same socket with a faster clock."""
    monkeypatch.setattr(consumer, "GAP_S", 0.02)
    monkeypatch.setattr(consumer, "LOOK_EVERY_S", 0.1)


@pytest.fixture
async def open_socket() -> AsyncIterator[Open]:
    """Opens a run's socket for a user (None: nobody), as a browser on our own page does."""
    sockets = []

    async def open_(user: User | None, run_id: str, query: str = "", **options: Any) -> Viewer:
        if user is not None:
            client = Client()
            await sync_to_async(client.force_login)(user)
            options["session"] = client.cookies["starloom_session"].value
        sockets.append(Viewer(run_id, query, **options))
        return sockets[-1]

    yield open_
    for socket in sockets:
        await socket.goes()


async def until(socket: Viewer, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """The messages up to the one that makes it enough."""
    heard: list[dict[str, Any]] = []
    while not enough(heard):
        heard.append(await socket.hears())
    return heard


tell = sync_to_async(rows.tell)


async def announce(run: Run) -> None:
    await sync_to_async(announce_run)(run.pk)


@sync_to_async
def truth(run: Run) -> tuple[dict[str, Any], dict[int, float | None]]:
    """What a page that is opened now shows."""
    fresh = Run.objects.get(pk=run.pk)
    rewards = series(fresh, ["reward"])["reward"]
    return run_summary(fresh), dict(zip(rewards.x, rewards.last, strict=True))


def points_of(heard: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(x, value) for message in heard for _, x, value, _ in message.get("points", ())]


# --- who may watch ---


@case("F041")
async def test_what_one_may_not_see_does_not_exist(
    case: dict[str, Any], run: Run, owner: User, open_socket: Open
) -> None:
    stranger = await sync_to_async(make_user)()
    for user, run_id, code in (
        (None, run.pk, 4401),
        (stranger, run.pk, 4404),
        (owner, "run_of_nobody", 4404),
    ):
        socket = await open_socket(user, run_id)
        assert await socket.opens(), "a browser hears a close code only of a socket that was opened"
        assert await socket.closed_with() == code
        assert code - 4000 in (401, *case["expected"]["status"])


async def test_a_page_of_another_site_gets_no_socket(run: Run, owner: User, open_socket: Open) -> None:
    assert not await (await open_socket(owner, run.pk, origin="http://evil.example")).opens()


async def test_a_right_that_ends_ends_the_socket(
    run: Run, owner: User, open_socket: Open, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "HEARTBEAT_S", 0.05)
    gone, lost = await sync_to_async(make_run)(run.project), await sync_to_async(make_run)(run.project)
    sockets = [await open_socket(owner, each.pk) for each in (gone, lost, run)]
    for socket in sockets:
        await socket.snapshot()
    await sync_to_async(gone.delete)()
    assert await sockets[0].closed_with() == 4404
    await Run.objects.filter(pk=lost.pk).aupdate(project=await sync_to_async(make_project)())
    assert await sockets[1].closed_with() == 4404
    await Session.objects.all().adelete()
    assert await sockets[2].closed_with() == 4401


# --- nothing missed, nothing twice ---


async def test_a_snapshot_and_its_deltas_are_the_same_as_a_fresh_snapshot(
    run: Run, owner: User, open_socket: Open, quick: None
) -> None:
    socket = await open_socket(owner, run.pk)
    first = await socket.snapshot()
    assert (first["type"], first["cursor"], first["points"], first["reset"]) == ("snapshot", 1, [], False)
    for x in range(1, 8):
        await tell(run, {x: x / 10}, (f"step {x}",))
        await announce(run)
    heard = await until(socket, lambda heard: bool(heard) and heard[-1].get("cursor") == run.revision)
    summary, rewards = await truth(run)
    assert heard[-1]["run"] == summary
    assert points_of(heard) == sorted(rewards.items()), "every point once, in order"
    assert [line["message"] for message in heard for line in message["log"]] == [f"step {x}" for x in range(1, 8)]


async def test_a_viewer_that_comes_back_gets_what_it_missed_at_once(run: Run, owner: User, open_socket: Open) -> None:
    await tell(run, {1: 0.1})
    cursor = run.revision
    await tell(run, {2: 0.2, 3: 0.3})
    first = await (await open_socket(owner, run.pk, f"since={cursor}")).snapshot()
    assert (first["type"], first["cursor"], points_of([first])) == ("snapshot", cursor + 1, [(2, 0.2), (3, 0.3)])


async def test_a_cursor_that_is_none_is_refused(run: Run, owner: User, open_socket: Open) -> None:
    for since in ("-1", "1.5", "x", "9" * 30, "%D9%A3"):
        socket = await open_socket(owner, run.pk, f"since={since}")
        assert await socket.opens()
        assert await socket.closed_with() == 4400, since


async def test_steps_that_are_done_again_make_the_viewer_start_anew(
    run: Run, owner: User, open_socket: Open, quick: None
) -> None:
    await tell(run, {1: 0.1, 2: 0.2})
    socket = await open_socket(owner, run.pk)
    await socket.snapshot()
    await Run.objects.filter(pk=run.pk).aupdate(revision=9, reset_revision=9)
    (delta,) = await until(socket, lambda heard: len(heard) == 1)
    assert (delta["type"], delta["reset"], delta["cursor"]) == ("delta", True, 9)


async def test_a_lost_announcement_costs_a_moment_and_no_point(
    run: Run, owner: User, open_socket: Open, quick: None
) -> None:
    socket = await open_socket(owner, run.pk)
    await socket.snapshot()
    await tell(run, {1: 0.5})
    assert points_of(await until(socket, lambda heard: len(heard) == 1)) == [(1, 0.5)]


@case("F059")
async def test_a_slow_reader_ends_up_complete(
    case: dict[str, Any], run: Run, owner: User, open_socket: Open, quick: None
) -> None:
    socket = await open_socket(owner, run.pk)
    await socket.snapshot()
    for x in range(1, case["input"]["messages"] + 1):
        if x % 10 == 1:
            await tell(run, {x: float(x)})
        await announce(run)
    heard = await until(socket, lambda heard: bool(heard) and heard[-1].get("cursor") == run.revision)
    assert points_of(heard) == sorted((await truth(run))[1].items())
    assert [x for x, _ in points_of(heard)] == list(range(1, case["input"]["messages"] + 1, 10))


# --- what viewers cost ---


@case("F061")
async def test_many_updates_and_many_viewers_are_few_messages_and_fewer_looks(
    case: dict[str, Any],
    run: Run,
    owner: User,
    open_socket: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = Counter[int | None]()

    def counted(run_id: str, since: int | None) -> reads.Read:
        looks[since] += 1
        return look(run_id, since)

    look = reads.look
    monkeypatch.setattr(reads, "look", counted)
    viewers = [await open_socket(owner, run.pk) for _ in range(case["input"]["viewers"])]
    for viewer in viewers:
        await viewer.snapshot()
    looks.clear()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for x in range(1, case["input"]["update_rate_hz"] + 1):
        if x % 50 == 0:
            await tell(run, {x: 1.0})
        await announce(run)
        await asyncio.sleep(max(0.0, began + x / case["input"]["update_rate_hz"] - loop.time()))
    heard = [
        await until(viewer, lambda heard: heard[-1:] != [] and heard[-1]["cursor"] == run.revision)
        for viewer in viewers
    ]
    seconds = loop.time() - began
    for messages in heard:
        assert len(messages) <= 2 * seconds + 1, "two a second"
        assert len(messages) / seconds <= case["expected"]["sent_per_viewer_hz_max"]
        assert points_of(messages) == [(x, 1.0) for x in range(50, case["input"]["update_rate_hz"] + 1, 50)]
    assert looks.total() < len(viewers), "viewers share looks"
    assert len(caplog.records) <= case["expected"]["log_lines_per_minute_max"]


@case("F065")
async def test_many_viewers_that_come_back_at_once_take_few_connections(
    case: dict[str, Any], run: Run, owner: User, open_socket: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their back-off is the browser's (frontend/test/backoff.test.ts); here: what they cost when they come."""
    at_once, most = 0, 0

    def counted(run_id: str, since: int | None) -> reads.Read:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return look(run_id, since)
        finally:
            at_once -= 1

    look = reads.look
    monkeypatch.setattr(reads, "look", counted)
    await tell(run, {1: 0.5})
    viewers = [await open_socket(owner, run.pk, f"since={place % 7}") for place in range(40)]
    first = await asyncio.gather(*(viewer.snapshot() for viewer in viewers))
    assert {message["cursor"] for message in first} == {run.revision}
    assert most <= reads.THREADS


@case("F067")
async def test_a_client_that_does_not_read_is_left(
    case: dict[str, Any], run: Run, owner: User, open_socket: Open, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "SEND_S", 0.1)
    monkeypatch.setattr(consumer, "CLOSE_S", 0.1)
    viewer = await open_socket(owner, run.pk)
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "websocket.connect"})
    tried = []

    async def send(message: dict[str, Any]) -> None:
        tried.append(message["type"])
        if message["type"] != "websocket.accept":
            await asyncio.Event().wait()  # the client's window is closed

    async with asyncio.timeout(5):
        await application(viewer.scope, incoming.get, send)
    assert case["expected"]["connection_closed"]
    assert tried == ["websocket.accept", "websocket.send", "websocket.close"], "one message waits, never a heap"


@case("F069")
async def test_a_message_that_is_too_long_is_left_to_the_api(
    case: dict[str, Any], run: Run, owner: User, open_socket: Open, quick: None
) -> None:
    socket = await open_socket(owner, run.pk)
    await socket.snapshot()
    await tell(run, {}, ("x" * case["input"]["message_size_kb"] * 1024,))
    (message,) = await until(socket, lambda heard: len(heard) == 1)
    assert message == {"type": "refetch", "cursor": run.revision, "reset": False}
    await tell(run, {1: 0.5})
    assert points_of(await until(socket, lambda heard: len(heard) == 1)) == [(1, 0.5)]


# --- when something is away ---


async def test_a_quiet_socket_is_heard_every_so_often(
    run: Run, owner: User, open_socket: Open, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "HEARTBEAT_S", 0.05)
    socket = await open_socket(owner, run.pk)
    await socket.snapshot()
    assert await until(socket, lambda heard: len(heard) == 2) == [{"type": "ping"}] * 2


async def test_a_database_that_is_away_is_told_and_waited_for(
    run: Run, owner: User, open_socket: Open, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "TROUBLE_AFTER_S", 0.2)
    failures = iter([OperationalError("the server is starting up")] * 2)
    updates = reads.updates

    def failing(run: Run, since: int) -> Any:
        for error in failures:
            raise error
        return updates(run, since)

    socket = await open_socket(owner, run.pk)
    await socket.snapshot()
    monkeypatch.setattr(reads, "updates", failing)
    await tell(run, {1: 0.5})
    heard = await until(socket, lambda heard: bool(points_of(heard)))
    assert [message["type"] for message in heard] == ["trouble", "trouble", "ping", "delta"]


class _Away:
    """A channel layer whose server is away, until it is told to be there."""

    def __init__(self, layer: Any) -> None:
        self._layer, self.is_there = layer, asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        if not self.is_there.is_set():
            raise ConnectionRefusedError("no such socket")
        return getattr(self._layer, name)


async def test_a_socket_opens_without_valkey_and_listens_when_it_is_back(
    run: Run, owner: User, open_socket: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = _Away(get_channel_layer())
    monkeypatch.setattr("webapp.live.wake_ups.get_channel_layer", lambda: layer)
    monkeypatch.setattr("webapp.live.wake_ups.RETRY_S", (0.05,))
    monkeypatch.setattr(consumer, "GAP_S", 0.02)
    monkeypatch.setattr(consumer, "LOOK_EVERY_S", 0.3)
    socket = await open_socket(owner, run.pk)
    await socket.snapshot()
    await tell(run, {1: 0.5})
    assert points_of(await until(socket, lambda heard: len(heard) == 1)) == [(1, 0.5)]
    monkeypatch.setattr(consumer, "LOOK_EVERY_S", 3600.0)
    layer.is_there.set()
    await tell(run, {2: 0.6})
    assert points_of(await until(socket, lambda heard: len(heard) == 1)) == [(2, 0.6)]


async def test_a_subscription_that_breaks_comes_back_by_itself(
    run: Run, owner: User, open_socket: Open, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a restart of Valkey does to the subscription, seen from here: its connection is cut."""
    import redis.asyncio

    monkeypatch.setattr(consumer, "GAP_S", 0.02)
    monkeypatch.setattr(consumer, "LOOK_EVERY_S", 3600.0)
    client = redis.asyncio.Redis(unix_socket_path=str(valkey.socket), password=valkey.password)
    channel = f"starloom__group__{group_of(run.pk)}"

    async def subscribed(count: int) -> None:
        async with asyncio.timeout(10):
            while (await client.pubsub_numsub(channel))[0][1] != count:  # noqa: ASYNC110 (Valkey tells nobody)
                await asyncio.sleep(0.02)

    try:
        await (await open_socket(owner, run.pk)).snapshot()
        second = await open_socket(owner, run.pk)
        await second.snapshot()
        await subscribed(1)
        await client.client_kill_filter(_type="pubsub")
        await subscribed(0)
        await subscribed(1)
        await tell(run, {1: 0.5})
        await announce(run)
        assert points_of(await until(second, lambda heard: bool(points_of(heard)))) == [(1, 0.5)]
    finally:
        await client.aclose()
