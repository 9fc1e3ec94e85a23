"""Servers for tests of the platform: one Postgres and one Valkey a session, started when first asked for.

Plain pytest-django then works. What would leave the test is caught: tasks are not sent but noted (``queued_tasks``),
the channel layer is in memory. A test that wants the real ones asks for ``valkey``.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from channels.layers import channel_layers
from django.conf import settings as django_settings
from django.core.cache import cache

from tests.webapp.support import serving
from webapp.machine.postgres import Postgres
from webapp.machine.valkey import ValkeyServer


@pytest.fixture(scope="session")
def servers() -> Iterator[ExitStack]:
    """What ends with the session; then ``var/`` goes."""
    var = django_settings.VAR
    assert "starloom-tests-" in str(var.path), var
    with ExitStack() as stack:
        yield stack
    shutil.rmtree(var.sockets)


@pytest.fixture(scope="session")
def postgres_server(servers: ExitStack) -> Postgres:
    var = django_settings.VAR
    var.logs.mkdir(exist_ok=True)
    server = Postgres.of(var, durable=False)
    servers.enter_context(serving(server, var.logs / "postgres.log"))
    return server


@pytest.fixture(scope="session")
def valkey_server(servers: ExitStack) -> ValkeyServer:
    var = django_settings.VAR
    var.logs.mkdir(exist_ok=True)
    server = ValkeyServer.of(var, durable=False)
    servers.enter_context(serving(server, var.logs / "valkey.log"))
    return server


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres_server: Postgres) -> None:
    """The settings name the server already; here it is started, before pytest-django makes the test database."""


@pytest.fixture
def valkey(valkey_server: ValkeyServer, settings: Any) -> Iterator[ValkeyServer]:
    """The real channel layer and the real broker, emptied afterwards; ``queued_tasks`` still keeps tasks back."""
    import redis

    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [settings.VALKEY.url], "prefix": "starloom"},
        }
    }
    yield valkey_server
    with redis.Redis(unix_socket_path=str(valkey_server.socket), password=valkey_server.password) as client:
        client.flushall()


@pytest.fixture(autouse=True)
def queued_tasks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Every task that would have gone to Celery, as (name of the function, argument, ...)."""
    sent: list[tuple[Any, ...]] = []

    def note(task: Any, args: Any = None, kwargs: Any = None, **options: Any) -> None:
        sent.append((task.name.rpartition(".")[2], *(args or ()), *(kwargs or {}).values()))

    monkeypatch.setattr("celery.app.task.Task.apply_async", note)
    return sent


@pytest.fixture(autouse=True)
def _fresh(settings: Any) -> Iterator[None]:
    """No channel layer and no cache of another test."""
    channel_layers.backends.clear()
    yield
    channel_layers.backends.clear()
    cache.clear()
