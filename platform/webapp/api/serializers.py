"""What resources look like in answers, field by field with its meaning: the OpenAPI schema is made from here.

Leaves out bodies that clients send: ``bodies.py``.
"""

from typing import Any, TypeVar

from django.db.models import Model
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from webapp.accounts.models import ApiToken, Project
from webapp.datasets.models import Dataset
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.runs.models import Attempt, Checkpoint, Command
from webapp.runs.states import ALLOWED, State
from webapp.telemetry.models import LogLine
from webapp.trajectories.models import Group, ToolCall, Trajectory

M = TypeVar("M", bound=Model)
RECIPE_SCHEMA = {"$ref": "#/components/schemas/Recipe"}
NUMBERS = {"type": "object", "additionalProperties": {"type": ["number", "null"]}}


@extend_schema_field(RECIPE_SCHEMA)
class RecipeJson(serializers.JSONField):
    """``engine.contract.job.Recipe`` with every default filled in."""


@extend_schema_field(NUMBERS)
class Figures(serializers.JSONField):
    """Metric -> number; null where it was not finite."""


class Answer(serializers.Serializer[Any]):
    """Something that is answered: every member is always there."""

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        for field in fields.values():
            field.required = True
        return fields


class Row(Answer, serializers.ModelSerializer[M]):
    """A row of the database as an answer."""


class StageOfRun(serializers.Serializer[Any]):
    name = serializers.CharField()
    kind = serializers.CharField(help_text="`sft`, `rl` or `eval`.")
    steps = serializers.IntegerField(help_text="Steps planned; of an evaluation, problems.")
    offset = serializers.IntegerField(help_text="Training steps of the stages before: x = offset + step.")
    trained_steps = serializers.IntegerField(help_text="Last finished step.")
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    metrics = Figures(help_text="Figures of a finished evaluation.")


class RunSummary(Answer):
    """A run in lists and in `updates`; made by ``runs.queries.run_summary``."""

    id = serializers.CharField()
    name = serializers.CharField()
    project = serializers.CharField(help_text="Project id.")
    state = serializers.ChoiceField(choices=State.choices)
    state_reason = serializers.CharField(help_text="Why it is in this state; empty where that is plain.")
    stage = serializers.CharField(help_text="Stage at work.")
    step = serializers.IntegerField(help_text="Last finished step of that stage.")
    x = serializers.IntegerField(help_text="Last finished step, counted over all stages.")
    total_steps = serializers.IntegerField(help_text="Training steps of all stages together.")
    phase = serializers.CharField(help_text="What the stage is busy with.")
    attempt = serializers.IntegerField(help_text="Lives of the engine so far; 2 after the first resume.")
    launches = serializers.IntegerField(help_text="Times an engine was started.")
    latest = Figures(help_text="Metric -> its last value.")
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    heartbeat_at = serializers.DateTimeField(allow_null=True, help_text="When the engine was last heard.")
    created_by = serializers.CharField(help_text="User name.")
    allowed_commands = serializers.ListField(
        child=serializers.ChoiceField(choices=list(ALLOWED)), help_text="What may be asked of it now."
    )
    waiting_commands = serializers.ListField(
        child=serializers.CharField(), help_text="Commands that the engine has yet to answer."
    )
    stages = StageOfRun(many=True)
    cursor = serializers.IntegerField(help_text="Revision: `updates?since=` gives what came after.")


class AttemptOfRun(Row[Attempt]):
    class Meta:
        model = Attempt
        fields = ("number", "resumed_from", "started_at", "ended_at", "outcome", "message")


class CheckpointOfRun(Row[Checkpoint]):
    class Meta:
        model = Checkpoint
        fields = ("id", "attempt", "stage", "step", "path", "created_at")


class RunDetail(RunSummary):
    """A run with its recipe and its history."""

    recipe = RecipeJson()
    toml = serializers.CharField(help_text="The recipe as written.")
    digest = serializers.CharField(help_text="SHA-256 of the resolved recipe.")
    recipe_version = serializers.CharField(allow_null=True, help_text="Id of the saved version it was made from.")
    datasets = serializers.DictField(child=serializers.CharField(), help_text="Stage -> dataset id.")
    attempts = AttemptOfRun(many=True)
    checkpoints = CheckpointOfRun(many=True, help_text="The newest 100, newest first.")


class CommandResource(Row[Command]):
    """Something asked of a run: `accepted`, then `applied` or `rejected`."""

    run = serializers.CharField(source="run_id")

    class Meta:
        model = Command
        fields = ("id", "run", "kind", "status", "reason", "note", "by", "created_at", "ended_at")


class GroupRow(Row[Group]):
    """All rollouts of one problem in one step."""

    class Meta:
        model = Group
        fields = (
            "id",
            "stage",
            "step",
            "attempt",
            "name",
            "problem_id",
            "rollouts",
            "left_out",
            "right",
            "kept",
            "outcome",
            "tool_calls",
            "tool_errors",
            "superseded",
        )


class TrajectoryRow(Row[Trajectory]):
    """A rollout in lists: no texts but the answer."""

    run = serializers.CharField(source="run_id")
    group = serializers.CharField(source="group_name")
    policy_steps = serializers.ListField(
        child=serializers.ListField(child=serializers.IntegerField()),
        help_text="[first position in the response, weight version] of each that sampled; empty if one did.",
    )

    class Meta:
        model = Trajectory
        fields = (
            "id",
            "run",
            "attempt",
            "stage",
            "step",
            "group",
            "replica",
            "problem_id",
            "stop_reason",
            "answer",
            "verdict",
            "reward",
            "reward_status",
            "penalty",
            "advantage",
            "kept",
            "seconds",
            "prompt_tokens",
            "response_tokens",
            "sampled_tokens",
            "assistant_turns",
            "tool_calls",
            "tool_errors",
            "first_version",
            "last_version",
            "policy_steps",
            "superseded",
        )


class ToolCallOfTurn(Row[ToolCall]):
    class Meta:
        model = ToolCall
        fields = (
            "id",
            "turn",
            "position",
            "name",
            "arguments",
            "status",
            "response",
            "error_type",
            "queued_s",
            "wall_s",
        )


class ToolCallResource(Row[ToolCall]):
    """One tool call and what came of it."""

    run = serializers.CharField(source="run_id")
    trajectory = serializers.CharField(source="trajectory_id")

    class Meta:
        model = ToolCall
        fields = ("run", "trajectory", *ToolCallOfTurn.Meta.fields)


class TurnOfTrajectory(Answer):
    position = serializers.IntegerField()
    role = serializers.CharField(help_text="`assistant` or `tool`.")
    start = serializers.IntegerField(help_text="First position of the turn in the response's token ids.")
    end = serializers.IntegerField(help_text="Position after its last.")
    text = serializers.CharField(help_text="As the model or the tool wrote it: never to be run or shown as HTML.")
    calls = ToolCallOfTurn(many=True)


class TrajectoryResource(TrajectoryRow):
    """A rollout with its transcript, which comes as ``context["turns"]``: it is read in one go, not row by row."""

    turns = serializers.SerializerMethodField()

    @extend_schema_field(TurnOfTrajectory(many=True))
    def get_turns(self, trajectory: Trajectory) -> Any:
        return TurnOfTrajectory(self.context["turns"], many=True).data

    class Meta:
        model = Trajectory
        fields = (*TrajectoryRow.Meta.fields, "problem", "gold", "kept_reason", "u", "file", "row", "turns")


class LogLineResource(Row[LogLine]):
    class Meta:
        model = LogLine
        fields = ("attempt", "seq", "at", "level", "message")


class LogPage(Answer):
    results = LogLineResource(many=True)
    next = serializers.CharField(allow_null=True, help_text="The `after` to go on with; null: no line yet.")


class NonFinite(Answer):
    x = serializers.IntegerField()
    which = serializers.ChoiceField(choices=["nan", "inf", "-inf", "null"])


class SeriesOfKey(Answer):
    """Parallel arrays, one entry a bucket of steps; a bucket is one step where there are few."""

    x = serializers.ListField(child=serializers.IntegerField(), help_text="Step over all stages, last of the bucket.")
    last = serializers.ListField(child=serializers.FloatField(allow_null=True))
    min = serializers.ListField(child=serializers.FloatField(allow_null=True))
    max = serializers.ListField(child=serializers.FloatField(allow_null=True))
    n = serializers.ListField(child=serializers.IntegerField(), help_text="Points in the bucket.")
    attempt = serializers.ListField(child=serializers.IntegerField())
    non_finite = NonFinite(many=True, help_text="Values that were not finite numbers; null in the arrays.")


class SeriesAnswer(Answer):
    cursor = serializers.IntegerField(help_text="Revision of the run before the arrays were read.")
    keys = serializers.ListField(child=serializers.CharField(), help_text="All keys that the run has so far.")
    series = serializers.DictField(child=SeriesOfKey())


class EngineLoadAnswer(Answer):
    """Parallel arrays, one entry a moment; over a long run the moments are thinned."""

    cursor = serializers.IntegerField(help_text="Revision of the run before the arrays were read.")
    seconds = serializers.ListField(child=serializers.FloatField(), help_text="Since the run started.")
    attempt = serializers.ListField(child=serializers.IntegerField())
    stage = serializers.ListField(child=serializers.CharField())
    step = serializers.ListField(child=serializers.IntegerField())
    engines = serializers.DictField(
        child=serializers.DictField(child=serializers.ListField(child=serializers.FloatField(allow_null=True))),
        help_text="Engine -> metric -> values; null where it told none, or no finite one. Counters are since the "
        "engine's start.",
    )


class AxisUnit(Answer):
    name = serializers.CharField(help_text="`step`, `second`, `minute` or `hour`.")
    per = serializers.FloatField(help_text="A point's x (a step, or seconds) divided by this is its place.")


class Chart(Answer):
    id = serializers.CharField()
    title = serializers.CharField()
    question = serializers.CharField(help_text="What the chart answers.")
    keys = serializers.ListField(child=serializers.CharField())
    figure = serializers.DictField(help_text="Plotly: `data` and `layout`.")
    bind = serializers.ListField(  # type: ignore[assignment]  # a field, which is no attribute
        child=serializers.DictField(), help_text="Which key is which trace."
    )
    x = AxisUnit(help_text="What is counted on the x axis.")
    ranges = serializers.ListField(help_text="Steps, or seconds, that the chart is about.")
    breaks = serializers.ListField(help_text="Places on the x axis after which its lines stop.")
    words = serializers.CharField(help_text="The chart in words.")


class ChartsAnswer(Answer):
    cursor = serializers.IntegerField()
    charts = Chart(many=True)


class UpdatesAnswer(Answer):
    """What came after a cursor."""

    cursor = serializers.IntegerField(help_text="Ask with this next time.")
    reset = serializers.BooleanField(help_text="Points shown so far stopped to count: fetch charts anew.")
    run = RunSummary()
    points = serializers.ListField(
        child=serializers.ListField(),
        help_text="[key, x, value or null, `nan`, `inf`, `-inf` or empty]. x is a step, of engines' figures seconds.",
    )
    log = LogLineResource(many=True)
    more = serializers.BooleanField(help_text="There was too much: fetch charts anew.")


class ProjectResource(Row[Project]):
    owner = serializers.CharField(source="owner.username", help_text="User name.")

    class Meta:
        model = Project
        fields = ("id", "name", "owner", "created_at")


class RecipeRow(Row[Recipe]):
    """A named line of versions."""

    project = serializers.CharField(source="project_id", allow_null=True, help_text="Null: built in.")
    built_in = serializers.BooleanField()
    version = serializers.CharField(source="newest_id", allow_null=True, help_text="Id of the newest version.")
    number = serializers.IntegerField(source="newest_number", allow_null=True, help_text="Its number.")

    class Meta:
        model = Recipe
        fields = ("id", "name", "description", "project", "built_in", "version", "number", "created_at")


class VersionRow(Row[RecipeVersion]):
    recipe_id = serializers.CharField()
    created_by = serializers.CharField(source="created_by.username", default=None, help_text="Null: built in.")

    class Meta:
        model = RecipeVersion
        fields = ("id", "recipe_id", "number", "digest", "created_by", "created_at")


class VersionResource(VersionRow):
    """A version as written and as resolved."""

    recipe = RecipeJson(source="spec")

    class Meta:
        model = RecipeVersion
        fields = (*VersionRow.Meta.fields, "toml", "recipe")


class DatasetResource(Row[Dataset]):
    """A version of a problem set; it never changes."""

    project = serializers.CharField(source="project_id")
    created_by = serializers.CharField(source="created_by.username", help_text="User name.")

    class Meta:
        model = Dataset
        fields = (
            "id",
            "project",
            "name",
            "version",
            "sha256",
            "count",
            "ungradable",
            "duplicates",
            "conflicts",
            "created_by",
            "created_at",
        )


class TokenResource(Row[ApiToken]):
    """An API token without its secret."""

    key = serializers.CharField(help_text="The part of the token between `sl_` and its secret.")
    scopes = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = ApiToken
        fields = ("id", "name", "key", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at")


class IssuedToken(TokenResource):
    """An API token as it is shown once."""

    token = serializers.CharField(allow_null=True, help_text="The token. Null when an answer is replayed.")

    class Meta:
        model = ApiToken
        fields = (*TokenResource.Meta.fields, "token")


class FieldError(serializers.Serializer[Any]):
    pointer = serializers.CharField(required=False, help_text="JSON pointer into the body; empty for all of it.")
    parameter = serializers.CharField(required=False, help_text="Query parameter.")
    line = serializers.IntegerField(required=False, help_text="Line of an uploaded file.")
    message = serializers.CharField()
    code = serializers.CharField(required=False)


class ProblemJson(serializers.Serializer[Any]):
    """Every error (RFC 9457), as `application/problem+json`."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField(help_text="What was expected and what mends it.")
    instance = serializers.CharField(help_text="Path of the request.")
    request_id = serializers.CharField(help_text="As in `X-Request-ID` and in the server's log.")
    code = serializers.CharField(help_text="For programs.")
    errors = FieldError(many=True, required=False)  # type: ignore[assignment]  # a field, which is no attribute
