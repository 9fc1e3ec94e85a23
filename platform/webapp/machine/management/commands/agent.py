"""``manage.py agent``: the process that starts this machine's engines. ``manage.py up`` keeps one running."""

import asyncio
import fcntl
import os
import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from webapp.config.paths import ensure_private
from webapp.machine.agent import Agent
from webapp.runs import services
from webapp.runs.models import Run


class Command(BaseCommand):
    help = "Start and watch this machine's engines (`up` runs this)."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        lock = os.open(ensure_private(settings.VAR.agent) / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError("an agent of this var/ is already running") from error
        asyncio.run(serve(Agent(settings.VAR, gone)))


async def serve(agent: Agent) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await agent.serve(stop)


def gone(run_id: str, number: int, how: str) -> None:
    """Tell the platform, from a thread of its own."""
    try:
        services.engine_gone(run_id, number, how)
    except Run.DoesNotExist:  # its database was thrown away: nobody wants to know
        return
    finally:
        connections.close_all()
