"""Says on the channel layer that a run has something new. Carries no data: readers look by their cursor, so a
message that is lost costs nothing but a moment."""

import asyncio
import logging
import time
from typing import Any

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

PATIENCE_S = 2.0
REST_S = 5.0


class _Rest:
    """Until when nothing is announced: ingest must not wait again and again for a server that is gone."""

    until = 0.0


def group_of(run_id: str) -> str:
    return f"run.{run_id}"


def announce_run(run_id: str) -> None:
    """Best effort: pages look by themselves every few seconds as well, so a Valkey that is gone is only logged."""
    layer = get_channel_layer()
    if layer is None or time.monotonic() < _Rest.until:
        return
    try:
        async_to_sync(_send)(layer, run_id)
    except (RedisError, OSError) as error:  # a time-out of asyncio is an OSError
        _Rest.until = time.monotonic() + REST_S
        logger.warning("could not announce run %s, nothing is announced for %.0f s: %r", run_id, REST_S, error)


async def _send(layer: Any, run_id: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await layer.group_send(group_of(run_id), {"type": "run.changed"})
