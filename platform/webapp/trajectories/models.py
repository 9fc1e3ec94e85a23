"""Groups, trajectories, turns and tool calls. Written in bulk by ``telemetry.bulk``.

Texts are as the engine wrote them: hostile. ``superseded`` rows belong to steps that a later attempt did again.
"""

from django.db import models

from webapp.config.ids import LENGTH
from webapp.runs.models import Run


class Group(models.Model):
    """All rollouts of one problem in one step, with what down-sampling made of them."""

    id = models.CharField(primary_key=True, max_length=LENGTH)
    run = models.ForeignKey(Run, models.CASCADE, related_name="groups", db_index=False)
    revision = models.BigIntegerField()
    attempt = models.PositiveIntegerField()
    stage = models.CharField(max_length=50)
    step = models.PositiveIntegerField()
    name = models.CharField(max_length=120, help_text="As trajectories name it.")
    problem_id = models.TextField()
    rollouts = models.PositiveIntegerField()
    left_out = models.PositiveIntegerField()
    right = models.PositiveIntegerField()
    kept = models.PositiveIntegerField()
    outcome = models.CharField(max_length=20)
    tool_calls = models.PositiveIntegerField()
    tool_errors = models.PositiveIntegerField()
    superseded = models.BooleanField(default=False)

    class Meta:
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=["run", "attempt", "name"], name="group_once"),)
        indexes = (
            models.Index(fields=["run", "id"], name="group_page"),
            models.Index(fields=["run", "stage", "step"], name="group_by_step"),
        )

    def __str__(self) -> str:
        return self.name


class Trajectory(models.Model):
    """One rollout. Lengths in tokens, times in seconds; field by field ``engine.contract.trajectory.Trajectory``."""

    id = models.CharField(primary_key=True, max_length=LENGTH)
    run = models.ForeignKey(Run, models.CASCADE, related_name="trajectories", db_index=False)
    revision = models.BigIntegerField()
    attempt = models.PositiveIntegerField()
    stage = models.CharField(max_length=50)
    step = models.PositiveIntegerField()
    group_name = models.CharField(max_length=120)
    replica = models.PositiveIntegerField()
    problem_id = models.TextField()
    problem = models.TextField()
    gold = models.TextField()
    stop_reason = models.CharField(max_length=12)
    first_version = models.PositiveIntegerField()
    last_version = models.PositiveIntegerField()
    policy_steps = models.JSONField(
        default=list,
        db_default=[],
        help_text="[first position in the response, weight version] of each that sampled; empty if one did.",
    )
    answer = models.TextField(null=True)
    verdict = models.CharField(max_length=20, null=True)
    reward = models.FloatField(null=True)
    reward_status = models.CharField(max_length=12)
    u = models.FloatField()
    penalty = models.FloatField(null=True)
    advantage = models.FloatField(null=True)
    kept = models.BooleanField()
    kept_reason = models.TextField()
    seconds = models.FloatField()
    prompt_tokens = models.PositiveIntegerField()
    response_tokens = models.PositiveIntegerField()
    sampled_tokens = models.PositiveIntegerField()
    assistant_turns = models.PositiveIntegerField()
    tool_calls = models.PositiveIntegerField()
    tool_errors = models.PositiveIntegerField()
    file = models.TextField(help_text="Parquet file in the run folder with its tokens.")
    row = models.PositiveIntegerField(help_text="Row of that file.")
    superseded = models.BooleanField(default=False)

    class Meta:
        ordering = ("id",)
        constraints = (models.UniqueConstraint(fields=["run", "file", "row"], name="trajectory_once"),)
        indexes = (
            models.Index(fields=["run", "id"], name="trajectory_page"),
            models.Index(fields=["run", "stage", "step"], name="trajectory_by_step"),
        )

    def __str__(self) -> str:
        return f"{self.group_name}#{self.replica}"


class Turn(models.Model):
    """One message of the response: an assistant turn or the tool responses after it."""

    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="turns", db_index=False)
    position = models.PositiveIntegerField()
    role = models.CharField(max_length=10)
    start = models.PositiveIntegerField()
    end = models.PositiveIntegerField()
    text = models.TextField()

    class Meta:
        ordering = ("position",)
        constraints = (models.UniqueConstraint(fields=["trajectory", "position"], name="turn_once"),)

    def __str__(self) -> str:
        return f"{self.trajectory_id} turn {self.position}"


class ToolCall(models.Model):
    """One tool call; ``turn`` is the position of the assistant turn that made it, ``position`` counts in that turn."""

    id = models.CharField(primary_key=True, max_length=LENGTH)
    run = models.ForeignKey(Run, models.CASCADE, related_name="+", db_index=False)
    trajectory = models.ForeignKey(Trajectory, models.CASCADE, related_name="calls", db_index=False)
    turn = models.PositiveIntegerField()
    position = models.PositiveIntegerField()
    name = models.TextField()
    arguments = models.JSONField()
    status = models.CharField(max_length=20)
    response = models.TextField()
    error_type = models.TextField(null=True)
    queued_s = models.FloatField()
    wall_s = models.FloatField()

    class Meta:
        ordering = ("turn", "position")
        constraints = (models.UniqueConstraint(fields=["trajectory", "turn", "position"], name="tool_call_once"),)
        indexes = (models.Index(fields=["run", "status", "error_type"], name="call_by_error"),)

    def __str__(self) -> str:
        return f"{self.name}: {self.status}"
