"""Runs: list, create, detail, and the commands one may give them."""

from collections.abc import Mapping
from typing import Any, ClassVar

from django.db.models import QuerySet
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from engine.contract.job import Recipe
from webapp.accounts import policies
from webapp.accounts.models import User
from webapp.api.bodies import NewCommand, NewRun
from webapp.api.filters import Choice, Choices, Moment
from webapp.api.idempotency import idempotent
from webapp.api.problems import Problem, WrongInput, below_key
from webapp.api.serializers import AttemptOfRun, CheckpointOfRun, CommandResource, RunDetail, RunSummary
from webapp.api.views.base import ApiView, ListView, found, project_of, wrong_fields
from webapp.datasets.models import Dataset
from webapp.recipes.models import Recipe as RecipeOfProject
from webapp.recipes.models import RecipeVersion
from webapp.recipes.toml_text import toml_of
from webapp.runs import services
from webapp.runs.models import Command, Run
from webapp.runs.queries import run_list, run_summary
from webapp.runs.states import ALLOWED, State, allowed_commands

CHECKPOINTS_SHOWN = 100


class RunFilters(filters.FilterSet):  # type: ignore[misc]
    project = filters.CharFilter(label="Project id.")
    state = Choices(choices=State.values, label="State; more than one may be given.")
    recipe_version = filters.CharFilter(label="Id of the saved version it was made from.")
    created_at__gte = Moment("created_at", "gte", label="Created at this time or later.")
    created_at__lt = Moment("created_at", "lt", label="Created before this time.")


class RunList(ListView):
    required_scopes: ClassVar = {"GET": "runs:read", "POST": "runs:write"}
    model, schema_class = Run, RunSummary
    filterset_class = RunFilters
    orderings: ClassVar = {"id": ("id",), "created_at": ("id",)}

    def rows(self) -> QuerySet[Run]:
        return run_list(self.who).filter(archived_at__isnull=True)

    @extend_schema(summary="List runs", responses=RunSummary(many=True))
    def get(self, request: Request) -> Response:
        """Runs that you may see, newest first. `created_at` and `id` are the same order: ids sort by time."""
        return self.answer(run_summary)

    @extend_schema(summary="Create a run", request=NewRun, responses={201: RunDetail})
    @idempotent()
    def post(self, request: Request) -> Response:
        """Create a run from a saved recipe version, a recipe as JSON, or a recipe as TOML, and have it started. Wrong
        fields are all named, with JSON pointers."""
        body = NewRun(data=request.data)
        body.is_valid(raise_exception=True)
        run = create_run(self.who, body.validated_data)
        return Response(run_detail(run), 201, headers={"Location": reverse("api:run", [run.pk], request=request)})


def create_run(user: User, asked: Mapping[str, Any]) -> Run:
    """The run that a checked body asks for. Raises ``WrongInput``."""
    project = project_of(user, asked.get("project"))
    recipe, toml, version = chosen_recipe(user, asked)
    try:
        return services.create_run(
            user=user,
            project=project,
            recipe=recipe,
            toml=toml,
            name=asked.get("name", ""),
            version=version,
            datasets=chosen_datasets(user, asked.get("datasets", {})),
        )
    except services.WrongFields as error:
        raise wrong_fields(error) from error


def chosen_recipe(user: User, asked: Mapping[str, Any]) -> tuple[Recipe, str, RecipeVersion | None]:
    """The recipe in whichever way it was given, its TOML, and the saved version it is. Raises ``WrongInput``."""
    if "toml" in asked:
        return asked["toml"].recipe, asked["toml"].text, None
    if "recipe" in asked:
        return asked["recipe"], toml_of(asked["recipe"]), None
    recipes = policies.visible_recipes(RecipeOfProject.objects.all(), user)
    version = RecipeVersion.objects.filter(pk=asked["recipe_version"], recipe__in=recipes).first()
    if version is None:
        raise WrongInput([{"pointer": "/recipe_version", "message": "no such recipe version"}])
    try:
        return services.check_recipe(version.spec), version.toml, version
    except services.WrongFields as error:
        said = f"this version cannot be run any more: {error}"
        raise WrongInput([{"pointer": "/recipe_version", "message": said}]) from error


def chosen_datasets(user: User, asked: Mapping[str, str]) -> dict[str, Dataset]:
    """Stage -> dataset. Raises ``WrongInput`` for those that the user does not see."""
    seen = policies.visible(Dataset.objects.all(), user).in_bulk(list(asked.values()))
    missing = [stage for stage, dataset in asked.items() if dataset not in seen]
    if missing:
        said = "no such dataset"
        raise WrongInput([{"pointer": "/datasets" + below_key(stage), "message": said} for stage in missing])
    return {stage: seen[dataset] for stage, dataset in asked.items()}


def run_detail(run: Run) -> dict[str, Any]:
    """A run's summary with its recipe and history."""
    return {
        **run_summary(run),
        "recipe": run.spec,
        "toml": run.toml,
        "digest": run.digest,
        "recipe_version": run.recipe_version_id,
        "datasets": run.datasets,
        "attempts": AttemptOfRun(run.attempts.all(), many=True).data,
        "checkpoints": CheckpointOfRun(run.checkpoints.order_by("-id")[:CHECKPOINTS_SHOWN], many=True).data,
    }


class RunView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    schema_class = RunDetail

    @extend_schema(summary="Read a run", responses=RunDetail)
    def get(self, request: Request, run_id: str) -> Response:
        """A run with its recipe, attempts and checkpoints."""
        return Response(self.selected(run_detail(self.get_run())))


class CommandFilters(filters.FilterSet):  # type: ignore[misc]
    kind = Choice(choices=ALLOWED, label="Kind of command.")
    status = Choice(choices=Command.Status.values, label="What became of it.")


class CommandList(ListView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    model, schema_class = Command, CommandResource
    filterset_class = CommandFilters

    def rows(self) -> QuerySet[Command]:
        return Command.objects.filter(run=self.get_run())

    @extend_schema(summary="List a run's commands", responses=CommandResource(many=True))
    def get(self, request: Request, run_id: str) -> Response:
        """What was asked of the run, newest first."""
        return self.answer(lambda command: CommandResource(command).data)


class CommandView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    schema_class = CommandResource

    @extend_schema(summary="Read a command", responses=CommandResource)
    def get(self, request: Request, run_id: str, command_id: str) -> Response:
        """`accepted` until the engine has answered, which takes to the end of its step: ask again to wait for it."""
        command = found(Command.objects.filter(run=self.get_run()), command_id)
        return Response(self.selected(CommandResource(command).data))


class SendCommand(ApiView):
    required_scopes: ClassVar = {"POST": "runs:control"}

    @extend_schema(summary="Command a run", request=NewCommand, responses={202: CommandResource})
    @idempotent()
    def post(self, request: Request, run_id: str, kind: str) -> Response:
        """Pause, resume, stop or kill a run, or have it save a checkpoint. `stop` and `pause` are done at the end of
        the step, `kill` at once; `resume` of an ended run starts another attempt. What makes no sense now is answered
        409 with `allowed_commands`. The answer's `Location` tells what became of the command."""
        run = self.get_run()
        if kind not in ALLOWED:
            said = f"No such command: {kind}. There are {', '.join(ALLOWED)}."
            raise Problem(404, "Not found", said, "unknown_command")
        body = NewCommand(data=request.data)
        body.is_valid(raise_exception=True)
        command = sent(run, kind, self.who, body.validated_data["reason"])
        where = reverse("api:command", [run.pk, command.pk], request=request)
        return Response(CommandResource(command).data, 202, headers={"Location": where})


def sent(run: Run, kind: str, user: User, reason: str) -> Command:
    """The command, sent. Raises 409 that says what the run is and what may be asked of it."""
    try:
        return services.send_command(run.pk, kind, by=user.username, reason=reason)
    except services.Refused as error:
        run.refresh_from_db(fields=["state"])
        allowed = allowed_commands(State(run.state))
        raise Problem(
            409, "Not possible now", str(error), error.code, state=run.state, allowed_commands=allowed
        ) from error
