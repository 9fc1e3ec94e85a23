"""What REST itself has to remember: answers given under an ``Idempotency-Key``."""

from django.conf import settings
from django.db import models


class IdempotencyRecord(models.Model):
    """The answer to a POST, kept for a day, so that the same request again gets it instead of doing the work twice.

    Written in the transaction that did the work: there is no answer without the work and no work without the answer.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64, help_text="SHA-256 of method, path and body.")
    status = models.PositiveSmallIntegerField()
    headers = models.JSONField(default=dict)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once"),)
        indexes = (models.Index(fields=["created_at"], name="idempotency_age"),)

    def __str__(self) -> str:
        return f"{self.key}: {self.status}"
