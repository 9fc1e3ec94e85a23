"""Runs and what belongs to them. Written by ``runs.services`` and, from events, by ``telemetry.fold`` only."""

import functools

from django.conf import settings
from django.db import models
from django.utils import timezone

from webapp.accounts.models import Project
from webapp.config.ids import LENGTH, new_id
from webapp.recipes.models import RecipeVersion
from webapp.runs.states import State


class Run(models.Model):
    """One execution of a recipe.

    ``revision`` grows by one with every accepted batch of events and every change of state; rows that a batch makes
    carry it, so that "what is new since r" is one index range. It begins at 1: a reader at 0 has nothing yet.
    ``reset_revision`` is the last revision at which rows that were shown before stopped to count (a later attempt did
    their steps again): a reader with an older cursor starts anew. ``launches`` fences: a run token names its launch
    and an older one is refused. What attempts up to ``past_attempts`` still have to tell is history: it changes the
    run's state no more.
    """

    id = models.CharField(primary_key=True, max_length=LENGTH, default=functools.partial(new_id, "run"))
    project = models.ForeignKey(Project, models.CASCADE, related_name="runs")
    name = models.CharField(max_length=120)
    recipe_version = models.ForeignKey(RecipeVersion, models.SET_NULL, null=True, related_name="runs")
    spec = models.JSONField(help_text="engine.contract.job.Recipe, every default filled in.")
    toml = models.TextField(help_text="The recipe as written.")
    digest = models.CharField(max_length=64)
    datasets = models.JSONField(default=dict, help_text="Stage name -> dataset id, where a dataset is the data.")
    folder = models.TextField(help_text="Run folder.")

    state = models.CharField(max_length=10, choices=State.choices, default=State.queued)
    state_reason = models.TextField(blank=True)
    state_at = models.DateTimeField(default=timezone.now, help_text="When it came into this state.")
    launches = models.PositiveIntegerField(default=0)
    attempt = models.PositiveIntegerField(default=0, help_text="Highest attempt heard of.")
    past_attempts = models.PositiveIntegerField(default=0, help_text="Highest attempt heard of before this launch.")
    revision = models.BigIntegerField(default=1)
    reset_revision = models.BigIntegerField(default=0)

    stage = models.CharField(max_length=50, blank=True, help_text="Stage at work.")
    step = models.PositiveIntegerField(default=0, help_text="Last finished step of that stage.")
    x = models.PositiveIntegerField(default=0, help_text="Last finished step, counted over all stages.")
    total_steps = models.PositiveIntegerField(default=0, help_text="Training steps of all stages together.")
    phase = models.CharField(max_length=20, blank=True)
    latest = models.JSONField(default=dict, help_text="Metric -> its last value, for lists.")

    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="runs")
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    archived_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-id",)
        indexes = (
            models.Index(fields=["project", "-id"], name="run_by_project"),
            models.Index(fields=["state"], name="run_by_state"),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"


class Transition(models.Model):
    """A change of a run's state: when, why, by whom."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="transitions")
    before = models.CharField(max_length=10)
    after = models.CharField(max_length=10)
    reason = models.TextField(blank=True)
    actor = models.CharField(max_length=150, help_text="User name, `engine` or `platform`.")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.before} -> {self.after}"


class StageRun(models.Model):
    """A stage of a run. ``offset`` is the number of training steps before it: x = offset + step."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="stages")
    position = models.PositiveIntegerField()
    name = models.CharField(max_length=50)
    kind = models.CharField(max_length=10)
    steps = models.PositiveIntegerField(help_text="Steps planned; of an evaluation, problems.")
    offset = models.PositiveIntegerField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    trained_steps = models.PositiveIntegerField(default=0, help_text="Last finished step.")
    metrics = models.JSONField(default=dict, help_text="Figures of a finished evaluation.")

    class Meta:
        ordering = ("position",)
        constraints = (models.UniqueConstraint(fields=["run", "name"], name="stage_once"),)

    def __str__(self) -> str:
        return self.name


class Attempt(models.Model):
    """One life of the run's engine. ``last_seq`` is the last event taken in: the next is ``last_seq + 1``.

    ``starts`` says where it took up each stage: from there on, what earlier attempts told of that stage is superseded,
    in whatever order the attempts' events arrive.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    last_seq = models.PositiveBigIntegerField(default=0)
    resumed_from = models.TextField(null=True)
    starts = models.JSONField(default=dict, help_text="Stage -> first step that this attempt did.")
    stage = models.CharField(max_length=50, blank=True, help_text="Stage at work.")
    step = models.PositiveIntegerField(default=0, help_text="Last finished step of that stage.")
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(
        max_length=10, blank=True, help_text="`finished`, `stopped`, `failed`; empty: none told."
    )
    message = models.TextField(blank=True)

    class Meta:
        ordering = ("number",)
        constraints = (models.UniqueConstraint(fields=["run", "number"], name="attempt_once"),)

    def __str__(self) -> str:
        return f"attempt {self.number}"


class Checkpoint(models.Model):
    """A checkpoint that an engine told of."""

    id = models.CharField(primary_key=True, max_length=LENGTH)
    run = models.ForeignKey(Run, models.CASCADE, related_name="checkpoints")
    attempt = models.PositiveIntegerField()
    stage = models.CharField(max_length=50)
    step = models.PositiveIntegerField()
    path = models.TextField(help_text="In the run folder.")
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=["run", "path"], name="checkpoint_once"),)

    def __str__(self) -> str:
        return self.path


class Command(models.Model):
    """What somebody asked of a run: accepted, then applied by the engine or rejected, with the reason."""

    class Status(models.TextChoices):
        accepted = "accepted"
        applied = "applied"
        rejected = "rejected"

    id = models.CharField(primary_key=True, max_length=LENGTH, default=functools.partial(new_id, "cmd"))
    run = models.ForeignKey(Run, models.CASCADE, related_name="commands")
    kind = models.CharField(max_length=12)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.accepted)
    reason = models.TextField(blank=True, help_text="Why it was asked.")
    note = models.TextField(blank=True, help_text="Why it was rejected.")
    launch = models.PositiveIntegerField(help_text="The launch it is for: it dies with it.")
    by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("id",)
        indexes = (models.Index(fields=["run", "status"], name="command_waiting"),)

    def __str__(self) -> str:
        return f"{self.kind} ({self.status})"
