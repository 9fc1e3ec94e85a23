"""The checks of the setup page: what is there, what is not, in which words, and never for long."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from webapp.config.servers import Sandbox, Valkey
from webapp.machine import checks as checks_module
from webapp.machine.checks import Check, checks
from webapp.machine.valkey import ValkeyServer

Only = Callable[..., None]


def found() -> dict[str, Check]:
    return {check.name: check for check in checks()}


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Only:
    """Make no other checks than these: waiting for a worker that is not there takes its second."""

    def choose(*names: str) -> None:
        monkeypatch.setattr(checks_module, "_PROBES", [probe for probe in checks_module._PROBES if probe.name in names])

    return choose


@pytest.mark.django_db
def test_what_is_there_and_what_is_not(valkey: ValkeyServer) -> None:
    """In a test there are servers, but no worker, agent or sandbox."""
    made = found()
    assert made["Postgres"].detail.startswith("PostgreSQL 18")
    assert made["Valkey"].detail.startswith("Valkey ")
    assert made["Engine environment"].detail.startswith("torch 2.")
    assert {name for name, check in made.items() if not check.ok} == {"Celery worker", "Agent", "Sandbox"}
    assert all("manage.py up" in made[name].mend for name in ("Celery worker", "Agent", "Sandbox"))


def test_servers_that_are_gone_are_said(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, only: Only
) -> None:
    only("Postgres", "Valkey")
    monkeypatch.setitem(checks_module.connection.settings_dict, "HOST", str(tmp_path))
    settings.VALKEY = Valkey(f"unix://{tmp_path}/valkey.sock")
    made = found()
    assert not made["Postgres"].ok
    assert "No such file" in made["Postgres"].detail
    assert not made["Valkey"].ok
    assert "valkey.sock" in made["Valkey"].detail or "No such file" in made["Valkey"].detail


def test_a_check_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[Callable[[], None]] = []

    def hang() -> str:
        import threading

        event = threading.Event()
        released.append(event.set)
        event.wait(30)
        return "late"

    probes = (
        checks_module._Probe("Slow", hang, "wait"),
        checks_module._Probe("Quick", lambda: "here", ""),
    )
    monkeypatch.setattr(checks_module, "_PROBES", probes)
    monkeypatch.setattr(checks_module, "WITHIN_S", 0.2)
    begun = time.monotonic()
    slow, quick = checks()
    assert time.monotonic() - begun < 5
    released[0]()
    assert (slow.ok, slow.mend) == (False, "wait")
    assert "no answer within" in slow.detail
    assert quick == Check("Quick", True, "here", "")


def test_an_engine_that_is_not_installed_and_a_full_disk(monkeypatch: pytest.MonkeyPatch, only: Only) -> None:
    only("Engine environment", "Free disk")
    monkeypatch.setattr(checks_module, "_ENGINE", {"no_such_engine": ("no-such-engine",), "torch": ("torch",)})
    monkeypatch.setattr(checks_module, "_FREE_GB", 1e9)
    made = found()
    assert made["Engine environment"].detail == "not installed: no_such_engine"
    assert made["Engine environment"].mend == "Run `make setup`"
    assert "GB free on the disk of" in made["Free disk"].detail


def test_pieces_that_were_never_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, only: Only) -> None:
    only("Engine environment")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert found()["Engine environment"].detail == f"DeepSpeed's compiled pieces are not in {tmp_path}"


def test_a_sandbox_elsewhere_that_does_not_answer_is_to_be_mended_there(
    settings: Any, tmp_path: Path, only: Only
) -> None:
    only("Sandbox")
    settings.SANDBOX = Sandbox(f"valkey+unix://{tmp_path}/nobody.sock")
    sandbox = found()["Sandbox"]
    assert not sandbox.ok
    assert "nobody.sock" in sandbox.detail
    assert "STARLOOM_SANDBOX" in sandbox.mend
