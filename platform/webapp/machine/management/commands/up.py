"""``manage.py up``: everything that Starloom needs on one machine, until Ctrl-C."""

import asyncio
import io
import sys
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from webapp.config.paths import UnsafeFolder, ensure_private
from webapp.machine.instance import AlreadyRunning, the_only_one
from webapp.machine.supervisor import Supervisor
from webapp.machine.voice import Voice


class Command(BaseCommand):
    help = "Start Starloom on this machine: servers, web, workers, sandbox. Ctrl-C stops the runs, then everything."
    requires_system_checks = ()  # every part does them for itself

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, help="TCP port, the next free one if taken (default: as before)")
        parser.add_argument("--keep-runs", action="store_true", help="leave runs going when this stops")
        parser.add_argument("--demo", action="store_true", help="make a login and start the demo recipe")

    def handle(self, *args: Any, port: int | None, keep_runs: bool, demo: bool, **options: Any) -> None:
        var = settings.VAR
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace", line_buffering=True)  # names of runs may be in any script
        try:
            with the_only_one(var):
                ensure_private(var.logs)
                say = Voice(lambda text: self.stdout.write(text, ending=""), var.logs / "up.log")
                made = Supervisor(
                    var, say, host=settings.HOST, port=port or settings.PORT, keep_runs=keep_runs, with_demo=demo
                )
                code = asyncio.run(made.run())
        except (AlreadyRunning, UnsafeFolder) as error:
            raise CommandError(str(error)) from error
        if code:
            raise SystemExit(code)
