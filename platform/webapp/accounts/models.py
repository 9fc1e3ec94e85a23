"""Users, projects and API tokens."""

import functools

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models

from webapp.config.ids import LENGTH, new_id


class User(AbstractUser):
    """Somebody who logs in."""

    theme = models.CharField(
        max_length=5, default="auto", choices=[("auto", "as the system"), ("light", "light"), ("dark", "dark")]
    )


class Project(models.Model):
    """What a run belongs to; its owner sees and does everything in it."""

    id = models.CharField(primary_key=True, max_length=LENGTH, default=functools.partial(new_id, "prj"))
    name = models.CharField(max_length=80)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="projects")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("created_at",)
        constraints = (models.UniqueConstraint(fields=["owner", "name"], name="project_name_once_per_owner"),)

    def __str__(self) -> str:
        return self.name


class ApiToken(models.Model):
    """``sl_<key>_<secret>``: shown once, stored hashed. The key finds the row, the hash proves the secret."""

    id = models.CharField(primary_key=True, max_length=LENGTH, default=functools.partial(new_id, "tok"))
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    key = models.CharField(max_length=16, unique=True)
    secret_hash = models.CharField(max_length=64)
    scopes = ArrayField(models.CharField(max_length=30))
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"{self.name} (sl_{self.key}_…)"
