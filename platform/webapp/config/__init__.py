"""The Django project: settings, URLs, ASGI, Celery. Leaves out every rule of the product.

Celery's app is imported here so that a task sent from any process goes to the configured broker.
"""

from webapp.config.celery import app as celery_app

__all__ = ["celery_app"]
