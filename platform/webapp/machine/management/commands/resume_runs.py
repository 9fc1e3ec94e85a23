"""``manage.py resume_runs``: resumes the runs that the last shutdown stopped."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError
from kombu.exceptions import OperationalError

from webapp.machine import rest


class Command(BaseCommand):
    help = "Resume every run that was stopped because the platform was shut down."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            runs = rest.resume_all("resume_runs")
        except (DatabaseError, OperationalError) as error:
            raise CommandError(f"{error}\nIs Starloom running? Start it with `python manage.py up`") from error
        for run in runs:
            self.stdout.write(f"resumed: {run.name} ({run.pk})")
        if not runs:
            self.stdout.write("no run was stopped by a shutdown")
