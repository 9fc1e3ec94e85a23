"""The pure parts of the Valkey broker: URLs, bytes, placement."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.broker.valkey.address import address
from sandbox.broker.valkey.codec import decode_outcome, decode_request, encode_outcome, encode_request
from sandbox.broker.valkey.placement import place
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, NodeStatus, ProgramError, RequestRefused, Tier


@pytest.mark.parametrize(
    ("url", "shown", "options"),
    [
        (
            "valkey://host",
            "valkey://host",
            {"host": "host", "port": 6379, "db": 0, "socket_keepalive": True},
        ),
        (
            "redis://ada:s%40cret@host:7000/3",
            "redis://host:7000/3",
            {"username": "ada", "password": "s@cret", "host": "host", "port": 7000, "db": 3, "socket_keepalive": True},
        ),
        (
            "valkeys://:secret@[::1]:7000?ca=/etc/ca.pem",
            "valkeys://[::1]:7000",
            {
                "password": "secret",
                "host": "::1",
                "port": 7000,
                "db": 0,
                "socket_keepalive": True,
                "ssl_ca_certs": "/etc/ca.pem",
            },
        ),
        ("unix:///run/v.sock?db=2", "unix:///run/v.sock", {"path": "/run/v.sock", "db": 2}),
        (
            "valkey+unix:///run/v.sock?password=secret",
            "valkey+unix:///run/v.sock",
            {"path": "/run/v.sock", "db": 0, "password": "secret"},
        ),
    ],
)
def test_a_url_says_where_and_how_and_is_shown_without_its_secrets(
    url: str, shown: str, options: dict[str, Any]
) -> None:
    found = address(url)
    assert (found.shown, found.options) == (shown, options)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://host", "its scheme is 'http'"),
        ("host:6379", "its scheme is 'host'"),
        ("valkey:///0", "it has no host"),
        ("valkey://:secret@host:port", "Port could not be cast"),
        ("valkey://:secret@host/zero", "its path should be the number of a database, not 'zero'"),
        ("valkey://:secret@host?db=1", "unknown parameter 'db'"),
        ("valkey+unix:path", "it has no absolute path"),
        ("valkey+unix:///path?db=-1", "its db should be the number of a database, not '-1'"),
        ("valkey+unix:///path?nonsense", "bad query field"),
    ],
)
def test_a_wrong_url_is_told_what_is_wrong_with_it(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="a Valkey URL looks like valkey://host:6379/0") as refused:
        address(url)
    assert complaint in str(refused.value)
    assert "secret" not in str(refused.value)


TEXT = st.text(st.characters(exclude_categories=[]))


@given(code=TEXT, stdin=TEXT, queue_s=st.none() | st.floats(0.1, 100))
def test_requests_travel_unchanged(code: str, stdin: str, queue_s: float | None) -> None:
    request = ExecRequest(code=code, stdin=stdin, session="s", cell=3, queue_s=queue_s)
    assert decode_request(encode_request(request)) == request


@given(stdout=TEXT, wall_s=st.floats(0, 1e6), message=TEXT)
def test_results_travel_unchanged(stdout: str, wall_s: float, message: str) -> None:
    result = ExecResult(
        id="a",
        status=ExecStatus.ERROR,
        stdout=stdout,
        stderr="",
        exit_code=1,
        wall_s=wall_s,
        queued_s=0.5,
        error=ProgramError(type="E", message=message, line=3),
        session_kept=True,
        node="n1",
        detail="d",
    )
    assert decode_outcome(*encode_outcome(result)) == result


def test_a_request_of_another_version_is_refused_and_the_field_named() -> None:
    with pytest.raises(RequestRefused, match="does not take the request: colour"):
        decode_request(b'{"code": "x", "colour": "red"}')


def status(slots: int, tier: Tier = "full", draining: bool = False) -> NodeStatus:
    return NodeStatus(
        name="n",
        host="h",
        tier=tier,
        isolation="",
        slots=slots,
        busy=0,
        sessions=0,
        answered=0,
        draining=draining,
        uptime_s=0.0,
        load_1m=0.0,
        memory_mb=0,
    )


SESSIONS = [f"session-{number}" for number in range(3000)]


def test_sessions_are_shared_out_by_slots() -> None:
    nodes = {"a": status(slots=10), "b": status(slots=10), "c": status(slots=40)}
    homes = [place(session, nodes) for session in SESSIONS]
    assert [homes.count(node) / len(homes) for node in nodes] == pytest.approx([1 / 6, 1 / 6, 4 / 6], abs=0.03)


def test_a_node_that_goes_moves_only_its_own_sessions() -> None:
    nodes = {name: status(slots=4) for name in "abcd"}
    before = {session: place(session, nodes) for session in SESSIONS}
    del nodes["b"]
    assert all(place(session, nodes) == home for session, home in before.items() if home != "b")


def test_sessions_go_to_the_strongest_isolation_that_takes_any() -> None:
    nodes = {"weak": status(9, "container"), "none": status(9, "none"), "leaves": status(9, "full", draining=True)}
    assert {place(session, nodes) for session in SESSIONS[:50]} == {"weak"}
    assert {place(session, nodes | {"full": status(1)}) for session in SESSIONS[:50]} == {"full"}
    assert place("s", {"leaves": nodes["leaves"]}) is None
