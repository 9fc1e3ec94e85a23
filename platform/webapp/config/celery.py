"""The Celery application. Tasks are short: they start things and look after them, they never wait for a run."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.config.settings")

app = Celery("starloom")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
