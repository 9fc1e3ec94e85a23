"""The Celery application. Tasks are short: they start things and look after them, they never wait for a run."""

import os
from typing import Any

from celery import Celery
from celery.app.task import Task

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.config.settings")


class OutOfMemory(Exception):
    """A task ran out of memory. Celery ends the whole worker over a ``MemoryError``, and the task, acknowledged late,
    then comes again and ends the next one (celery/celery #10462)."""


class SafeTask(Task[Any, Any]):
    """A task that fails alone, however it fails."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except MemoryError as error:
            raise OutOfMemory(f"{self.name} ran out of memory") from error


app = Celery("starloom", task_cls=SafeTask)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
