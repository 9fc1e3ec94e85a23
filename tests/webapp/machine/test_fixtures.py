"""What the fixtures of the platform's tests promise."""

import os
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings

from tests.webapp.support import make_run
from webapp.config.paths import ROOT
from webapp.machine.valkey import ValkeyServer
from webapp.runs import services
from webapp.runs.models import Run


@pytest.mark.django_db
def test_tasks_are_noted_and_not_sent(queued_tasks: list[Any], django_capture_on_commit_callbacks: Any) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        run = make_run()
    assert queued_tasks == [("start_run", run.pk)]


@pytest.mark.django_db(transaction=True)
def test_real_transactions_work(queued_tasks: list[Any]) -> None:
    run = make_run()
    services.send_command(run.pk, "stop", by="somebody")
    assert Run.objects.get().state == "stopped"
    assert queued_tasks == [("start_run", run.pk)]


def test_the_channel_layer_is_in_memory_unless_valkey_is_asked_for() -> None:
    assert "InMemory" in type(get_channel_layer()).__name__


def test_valkey_carries_messages(valkey: ValkeyServer) -> None:
    async def there_and_back() -> dict[str, Any]:
        layer = get_channel_layer()
        name = await layer.new_channel()
        await layer.group_add("some.group", name)
        await layer.group_send("some.group", {"type": "run.changed"})
        received: dict[str, Any] = await layer.receive(name)
        await layer.flush()
        return received

    assert "PubSub" in type(get_channel_layer()).__name__
    assert async_to_sync(there_and_back)()["type"] == "run.changed"


def test_nothing_of_the_clone_is_touched() -> None:
    assert not settings.VAR.path.is_relative_to(ROOT)
    assert Path(os.environ["STARLOOM_VAR"]) == settings.VAR.path, "processes that tests start use it as well"
    assert os.environ["DJANGO_SETTINGS_MODULE"] == "webapp.config.settings"
