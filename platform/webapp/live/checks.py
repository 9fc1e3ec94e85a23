"""What must not be started: a channel layer that does not reach other processes."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register

IN_MEMORY = "InMemoryChannelLayer"


@register(Tags.async_support)
def channel_layer_crosses_processes(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Tests may have an in-memory layer: they are one process and do not run checks."""
    backend = str(settings.CHANNEL_LAYERS.get("default", {}).get("BACKEND", ""))
    if backend and not backend.endswith(IN_MEMORY):
        return []
    found = f"CHANNEL_LAYERS['default'] is {backend}" if backend else "CHANNEL_LAYERS has no 'default'"
    return [
        Error(
            f"{found}: what ingest and Celery announce would not reach the web server's sockets.",
            hint="Use channels_redis.pubsub.RedisPubSubChannelLayer with the Valkey of VALKEY_URL.",
            id="live.E001",
        )
    ]
