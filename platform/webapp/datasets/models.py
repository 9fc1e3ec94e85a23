"""Datasets and their problems."""

import functools

from django.conf import settings
from django.db import models

from webapp.accounts.models import Project
from webapp.config.ids import LENGTH, new_id


class Dataset(models.Model):
    """One version of a problem set; never changed after its upload."""

    id = models.CharField(primary_key=True, max_length=LENGTH, default=functools.partial(new_id, "ds"))
    project = models.ForeignKey(Project, models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=80)
    version = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64, help_text="Of the uploaded file.")
    count = models.PositiveIntegerField(help_text="Problems.")
    ungradable = models.PositiveIntegerField(
        default=0, help_text="Problems whose answer the grader cannot read: never sampled."
    )
    duplicates = models.PositiveIntegerField(default=0, help_text="Problems whose text an earlier one has: kept.")
    conflicts = models.PositiveIntegerField(default=0, help_text="Texts that come with more than one answer: kept.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-created_at",)
        constraints = (models.UniqueConstraint(fields=["project", "name", "version"], name="dataset_version_once"),)

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


class Problem(models.Model):
    """One line of the uploaded file."""

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="problems")
    position = models.PositiveIntegerField(help_text="Line of the file, from 1.")
    text = models.TextField()
    answer = models.TextField()
    ungradable = models.BooleanField(default=False, help_text="The grader cannot read the answer.")

    class Meta:
        ordering = ("position",)
        constraints = (models.UniqueConstraint(fields=["dataset", "position"], name="problem_position_once"),)

    def __str__(self) -> str:
        return f"{self.dataset_id}:{self.position}"
