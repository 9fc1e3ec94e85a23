"""Recipes and their versions."""

import functools

from django.conf import settings
from django.db import models

from webapp.accounts.models import Project
from webapp.config.ids import LENGTH, new_id


class Recipe(models.Model):
    """A named line of versions. Without a project it is built in and belongs to everybody."""

    id = models.CharField(primary_key=True, max_length=LENGTH, default=functools.partial(new_id, "rcp"))
    project = models.ForeignKey(Project, models.CASCADE, null=True, related_name="recipes")
    name = models.CharField(max_length=80)
    description = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.UniqueConstraint(fields=["project", "name"], name="recipe_name_once", nulls_distinct=False),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def built_in(self) -> bool:
        return self.project_id is None


class RecipeVersion(models.Model):
    """A recipe as written and as resolved; never changed."""

    id = models.CharField(primary_key=True, max_length=LENGTH, default=functools.partial(new_id, "rcv"))
    recipe = models.ForeignKey(Recipe, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    toml = models.TextField(help_text="As written.")
    spec = models.JSONField(help_text="engine.contract.job.Recipe, every default filled in.")
    digest = models.CharField(max_length=64)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-number",)
        constraints = (models.UniqueConstraint(fields=["recipe", "number"], name="recipe_version_once"),)

    def __str__(self) -> str:
        return f"{self.recipe_id} v{self.number}"
