"""The page of the sandbox: its nodes and its queue, what to do where there is none, and that it renews itself."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from sandbox.contract import NodeStatus, SandboxStatus
from tests.webapp.ui.markup import Page
from webapp.config.servers import Sandbox
from webapp.machine import sandbox_door

pytestmark = [pytest.mark.django_db]

Tell = Callable[..., None]


def node(name: str, **fields: Any) -> NodeStatus:
    same = {"host": "host-1", "tier": "full", "isolation": "namespaces, cgroup", "slots": 4, "busy": 1, "sessions": 2}
    numbers = {"answered": 1234, "uptime_s": 65.0, "load_1m": 0.5, "memory_mb": 48}
    return NodeStatus(**{"name": name, **same, **numbers, **fields})


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Have the sandbox say this of itself."""

    def say(*nodes: NodeStatus, interactive: int = 0, training: int = 0) -> None:
        status = SandboxStatus(nodes=nodes, queued_interactive=interactive, queued_training=training)
        monkeypatch.setattr(sandbox_door, "status", lambda place: status)

    return say


def test_nodes_are_shown_with_their_isolation_in_words(client: Client, tell: Tell) -> None:
    tell(node("a", draining=True), node("b", tier="none", isolation="<b>none</b>", busy=0), training=17)

    page = Page(client.get("/sandbox").text)

    assert page.offences() == page.doubled_ids() == page.broken_references() == []
    assert "Slots at work 1 of 8" in page.words
    assert "Training calls waiting 17" in page.words
    assert "takes no new calls" in page.words
    assert "<b>none</b>" in page.text
    assert "NOT isolated" in page.words
    assert "cannot open files outside its folder" not in page.words, "no node is of that tier"


def test_the_part_that_changes_is_all_that_is_asked_for_again(client: Client, tell: Tell) -> None:
    tell(node("a"))
    part = Page(client.get("/sandbox").text).by_id("sandbox-status")
    assert (part["hx-get"], part["hx-trigger"]) == ("/sandbox", "every 3s")

    renewed = client.get("/sandbox", headers={"HX-Request": "true", "HX-Target": "sandbox-status"}).text

    assert "<html" not in renewed
    assert Page(renewed).by_id("sandbox-status")["hx-swap"] == "outerHTML"


def test_a_queue_without_nodes_teaches_how_to_start_one(client: Client, tell: Tell, settings: Any) -> None:
    settings.SANDBOX = Sandbox("valkey://:hidden@queue.example:6379/0")
    tell(interactive=1, training=2)

    page = Page(client.get("/sandbox").text)

    assert "python -m sandbox node --valkey valkey://" in page.by_id("sandbox-node").text
    assert "3 wait" in page.words
    assert "hidden" not in page.text


def test_a_sandbox_that_cannot_be_reached_is_told_with_what_mends_it(client: Client, settings: Any) -> None:
    ours = Page(client.get("/sandbox").text)
    assert "no node listens at" in ours.words
    assert "manage.py up" in ours.words

    settings.SANDBOX = Sandbox("valkey+unix:///nowhere/valkey.sock")
    assert "STARLOOM_SANDBOX" in Page(client.get("/sandbox").text).words
