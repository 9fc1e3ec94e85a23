"""``manage.py down``: ends the `up` of this ``var/`` from another terminal, as Ctrl-C does, and waits for it."""

import os
import signal
import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from webapp.machine.instance import holder
from webapp.machine.parts import end_left_behind

_WAIT_S = 120


class Command(BaseCommand):
    help = "Stop what `up` started: the runs first, which write a checkpoint, then everything."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        pid = holder(settings.VAR)
        if pid is None:
            self.stdout.write(f"Starloom does not run on {settings.VAR.path}")
            if ended := end_left_behind(settings.VAR, 10):
                self.stdout.write(f"ended what one that was killed had left behind: {ended} processes")
            return
        self.stdout.write(f"stopping Starloom, process {pid}")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _WAIT_S
        while holder(settings.VAR) == pid:
            if time.monotonic() > deadline:
                raise CommandError(f"process {pid} still runs, see {settings.VAR.logs / 'up.log'}")
            time.sleep(0.1)
        self.stdout.write("stopped")
