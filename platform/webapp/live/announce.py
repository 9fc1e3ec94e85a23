"""Says on the channel layer that a run has something new. Carries no data: readers look by their cursor, so a
message that is lost costs nothing but a moment."""

import logging

from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer

logger = logging.getLogger(__name__)


def group_of(run_id: str) -> str:
    return f"run.{run_id}"


def announce_run(run_id: str) -> None:
    """Best effort: pages look by themselves every few seconds as well, so a Valkey that is gone is only logged."""
    layer = get_channel_layer()
    if layer is None:
        return
    try:
        async_to_sync(layer.group_send)(group_of(run_id), {"type": "run.changed"})
    except OSError as error:
        logger.warning("could not announce run %s: %s", run_id, error)
