"""Numbers, log lines and engine timelines of runs, written in bulk by ``telemetry.bulk``. Numbers and log lines are
never changed but for ``superseded``, which says that the step was done or told again: faint history."""

from django.db import models

from webapp.runs.models import Run


class MetricPoint(models.Model):
    """One value of one metric. ``value`` is null for a number that was not finite; ``non_finite`` says which.

    Of the points that are not superseded there is one for a key, a stage and a step. ``x`` follows from stage and
    step; two stages can share one (an evaluation stands where the stage before it ended).
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="+", db_index=False)
    revision = models.BigIntegerField()
    attempt = models.PositiveIntegerField()
    stage = models.CharField(max_length=50)
    step = models.PositiveIntegerField()
    x = models.PositiveIntegerField(help_text="Step counted over all stages.")
    key = models.CharField(max_length=120, help_text="`reward`, `seconds.sampling`, `pass@1`.")
    value = models.FloatField(null=True)
    non_finite = models.CharField(max_length=4, blank=True)
    at = models.DateTimeField()
    superseded = models.BooleanField(default=False)

    class Meta:
        ordering = ("id",)
        constraints = (
            # Also the index that series are read from.
            models.UniqueConstraint(
                fields=["run", "key", "x", "stage"], condition=models.Q(superseded=False), name="point_shown_once"
            ),
        )
        indexes = (models.Index(fields=["run", "revision"], name="point_since"),)

    def __str__(self) -> str:
        return f"{self.key}[{self.x}] = {self.value}"


class LogLine(models.Model):
    """One line of a run's log, numbered by its event."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="+", db_index=False)
    revision = models.BigIntegerField()
    attempt = models.PositiveIntegerField()
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    level = models.CharField(max_length=7)
    message = models.TextField()

    class Meta:
        ordering = ("attempt", "seq")
        constraints = (models.UniqueConstraint(fields=["run", "attempt", "seq"], name="log_line_once"),)
        indexes = (models.Index(fields=["run", "revision"], name="log_since"),)

    def __str__(self) -> str:
        return self.message


class EngineMoment(models.Model):
    """What a run's rollout engines said of themselves at one time; thinned as the run gets longer (by
    ``engine.interop.engine_timeline``). Nothing supersedes it: the engines did this, whatever became of the step."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="+", db_index=False)
    revision = models.BigIntegerField()
    attempt = models.PositiveIntegerField()
    stage = models.CharField(max_length=50)
    step = models.PositiveIntegerField()
    at = models.DateTimeField()
    engines = models.JSONField(help_text="Engine -> metric -> value; null: not a finite number.")

    class Meta:
        ordering = ("at", "id")
        indexes = (
            models.Index(fields=["run", "at"], name="engine_moment_at"),
            models.Index(fields=["run", "revision"], name="engine_moment_since"),
        )

    def __str__(self) -> str:
        return f"{', '.join(self.engines)} at {self.at}"
