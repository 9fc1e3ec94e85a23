"""Where a run's events go: the settings, and that the token goes nowhere else."""

import logging

import httpx
import pytest

from engine.contract.delivery import Batch
from engine.sink.platform_client import Address, Gap, PlatformClient, Undelivered, WrongAddress
from tests.engine.sink.platform_twin import TOKEN, PlatformTwin, serving

URL, SECRET = "STARLOOM_PLATFORM_URL", "STARLOOM_RUN_TOKEN"


def test_without_settings_there_is_no_platform() -> None:
    assert Address.taken_from({"PATH": "/bin"}) is None
    assert Address.taken_from({URL: "", SECRET: " "}) is None


def test_the_settings_are_taken_out_so_that_no_child_inherits_the_token() -> None:
    environment = {URL: "http://127.0.0.1:8000/", SECRET: "slr_x", "PATH": "/bin"}
    assert Address.taken_from(environment) == Address("http://127.0.0.1:8000", "slr_x")
    assert environment == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({URL: "http://a"}, f"{URL} is set and {SECRET} is not"),
        ({SECRET: "slr_x"}, f"{SECRET} is set and {URL} is not"),
        ({URL: "a:8000", SECRET: "slr_x"}, "expected http"),
        ({URL: "ftp://a", SECRET: "slr_x"}, "expected http"),
        ({URL: "http://", SECRET: "slr_x"}, "expected http"),
        ({URL: "http://ada:secret@a", SECRET: "slr_x"}, "expected http"),
        ({URL: "http://a/?next=1", SECRET: "slr_x"}, "expected http"),
        ({URL: "http://a", SECRET: "two\nlines"}, "is no token"),
    ],
)
def test_settings_that_cannot_work_are_named(environment: dict[str, str], expected: str) -> None:
    with pytest.raises(WrongAddress, match=expected):
        Address.taken_from(dict(environment))


def test_the_token_is_in_no_text_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    twin = PlatformTwin()
    with serving(twin):
        address = Address(twin.url, TOKEN)
        client = PlatformClient(address, "run-1")
        client.post(Batch(attempt=1))
    with pytest.raises(Undelivered) as error:
        client.post(Batch(attempt=1))
    client.close()
    assert TOKEN not in repr(address) + repr(error.value) + caplog.text


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    twin = PlatformTwin()
    with serving(twin):
        client = PlatformClient(Address(twin.url, TOKEN), "run-1")
        assert client.cursor() == {}
        client.close()


@pytest.mark.parametrize(
    ("body", "cursor"), [({"code": "gap", "cursor": {"1": 7}}, {1: 7}), ({"code": "gap", "cursor": {}}, {})]
)
def test_a_gap_says_where_the_platform_stands(body: dict[str, object], cursor: dict[int, int]) -> None:
    twin = PlatformTwin()
    twin.fault = lambda number, batch: (409, dict(body))
    with serving(twin):
        client = PlatformClient(Address(twin.url, TOKEN), "run-1")
        with pytest.raises(Gap) as gap:
            client.post(Batch(attempt=1))
        client.close()
    assert gap.value.cursor == cursor


@pytest.mark.parametrize("cursor", [None, "far", {"one": 1}, [1]])
def test_a_gap_without_a_cursor_is_no_delivery(cursor: object) -> None:
    twin = PlatformTwin()
    twin.fault = lambda number, batch: (409, {"code": "gap", "cursor": cursor})
    with serving(twin):
        client = PlatformClient(Address(twin.url, TOKEN), "run-1")
        with pytest.raises(Undelivered, match="without a cursor"):
            client.post(Batch(attempt=1))
        client.close()


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("0", 0.0), ("soon", None)])
def test_retry_after_in_seconds(value: str, seconds: float | None) -> None:
    assert retry_after(value) == seconds


def test_retry_after_as_a_date() -> None:
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    far = retry_after("Fri, 01 Jan 2100 00:00:00 GMT")
    assert far is not None
    assert far > 1e8


def retry_after(value: str) -> float | None:
    twin = PlatformTwin()
    twin.fault = lambda number, batch: (429, {"headers": {"Retry-After": value}})
    with serving(twin):
        client = PlatformClient(Address(twin.url, TOKEN), "run-1")
        with pytest.raises(Undelivered) as error:
            client.cursor()
        client.close()
    return error.value.retry_after


def test_the_run_id_cannot_lead_elsewhere() -> None:
    client = PlatformClient(Address("http://127.0.0.1:1/base", TOKEN), "../../x?y")
    assert httpx.URL(client.url).raw_path == b"/base/api/v1/runs/..%2F..%2Fx%3Fy/events"
    client.close()
