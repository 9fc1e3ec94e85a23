"""Groups, trajectories and tool calls: lists are summary rows, one trajectory is its transcript, an export is all.

Texts in here are a model's: they travel as JSON strings and are never shown as HTML or run by anybody on this side.
"""

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db.models import Exists, OuterRef, Prefetch, QuerySet
from django.http import StreamingHttpResponse
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from engine.contract.trajectory import StopReason
from webapp.accounts import policies
from webapp.api.filters import Choice, Count, Number, YesOrNo
from webapp.api.renderers import JsonLinesRenderer, StrictJsonRenderer, strict_json
from webapp.api.serializers import GroupRow, ToolCallResource, TrajectoryResource, TrajectoryRow
from webapp.api.views.base import ApiView, ListView, found
from webapp.trajectories.models import Group, ToolCall, Trajectory, Turn
from webapp.trajectories.queries import trajectory_list, transcript

SUPERSEDED = "Whether a later attempt did the step again. Without this filter there is only what counts."
EXPORT_CHUNK = 20
"""Trajectories in memory at a time: one may have megabytes of text."""


class GroupFilters(filters.FilterSet):  # type: ignore[misc]
    stage = filters.CharFilter(label="Stage.")
    step = Count(label="Step of the stage.")
    attempt = Count(label="Attempt that made it.")
    outcome = filters.CharFilter(label="`kept`, `all_right`, `all_wrong`, `roc_emptied` or `evaluated`.")
    superseded = YesOrNo(label=SUPERSEDED)


class GroupList(ListView):
    required_scopes: ClassVar = {"GET": "trajectories:read"}
    model, schema_class = Group, GroupRow
    filterset_class = GroupFilters
    default_ordering = "id"

    def rows(self) -> QuerySet[Group]:
        groups = Group.objects.filter(run=self.get_run())
        return groups if "superseded" in self.request.query_params else groups.filter(superseded=False)

    @extend_schema(summary="List groups", responses=GroupRow(many=True))
    def get(self, request: Request, run_id: str) -> Response:
        """Groups of a run, in the order in which they were finished, with what down-sampling made of each."""
        return self.answer(lambda group: GroupRow(group).data)


class TrajectoryFilters(filters.FilterSet):  # type: ignore[misc]
    stage = filters.CharFilter(label="Stage.")
    step = Count(label="Step of the stage.")
    step__gte = Count("step", "gte", label="Step, at least.")
    step__lte = Count("step", "lte", label="Step, at most.")
    attempt = Count(label="Attempt that made it.")
    group = filters.CharFilter("group_name", label="Name of its group.")
    problem_id = filters.CharFilter(label="Its problem.")
    reward = Number(label="Reward, exactly.")
    reward__gte = Number("reward", "gte", label="Reward, at least.")
    reward__lte = Number("reward", "lte", label="Reward, at most.")
    tool_calls__gt = Count("tool_calls", "gt", label="More tool calls than this.")
    tool_errors__gt = Count("tool_errors", "gt", label="More tool errors than this.")
    response_tokens__gte = Count("response_tokens", "gte", label="Response length in tokens, at least.")
    response_tokens__lte = Count("response_tokens", "lte", label="Response length in tokens, at most.")
    kept = YesOrNo(label="Whether down-sampling kept it.")
    stop_reason = Choice(choices=[each.value for each in StopReason], label="Why it ended.")
    superseded = YesOrNo(label=SUPERSEDED)
    error_type = filters.CharFilter(method="with_error", label="Has a call with this exception, such as NameError.")

    def with_error(self, rows: QuerySet[Trajectory], name: str, error_type: str) -> QuerySet[Trajectory]:
        calls = ToolCall.objects.filter(trajectory=OuterRef("pk"), error_type=error_type)
        return rows.filter(Exists(calls))


class TrajectoryList(ListView):
    required_scopes: ClassVar = {"GET": "trajectories:read"}
    model, schema_class = Trajectory, TrajectoryRow
    filterset_class = TrajectoryFilters
    orderings: ClassVar = {"id": ("id",), "step": ("stage", "step", "id")}
    default_ordering = "id"

    def rows(self) -> QuerySet[Trajectory]:
        return trajectory_list(self.get_run(), history="superseded" in self.request.query_params)

    @extend_schema(summary="List trajectories", responses=TrajectoryRow(many=True))
    def get(self, request: Request, run_id: str) -> Response:
        """Rollouts as summary rows, without their texts, in the order in which they were told."""
        return self.answer(lambda trajectory: TrajectoryRow(trajectory).data)


class TrajectoryView(ApiView):
    required_scopes: ClassVar = {"GET": "trajectories:read"}
    schema_class = TrajectoryResource

    @extend_schema(summary="Read a trajectory", responses=TrajectoryResource)
    def get(self, request: Request, trajectory_id: str) -> Response:
        """A rollout with its turns and their tool calls. Token ids stay in the run folder: `file` and `row`."""
        seen = policies.visible(Trajectory.objects.all(), self.who, "run__project")
        told = transcript(found(seen, trajectory_id))
        turns = [turn_of(turn, calls) for turn, calls in told.turns]
        return Response(self.selected(TrajectoryResource(told.trajectory, context={"turns": turns}).data))


def turn_of(turn: Turn, calls: list[ToolCall]) -> dict[str, Any]:
    return {
        "position": turn.position,
        "role": turn.role,
        "start": turn.start,
        "end": turn.end,
        "text": turn.text,
        "calls": calls,
    }


class ToolCallView(ApiView):
    required_scopes: ClassVar = {"GET": "trajectories:read"}
    schema_class = ToolCallResource

    @extend_schema(summary="Read a tool call", responses=ToolCallResource)
    def get(self, request: Request, call_id: str) -> Response:
        """One tool call: the program, and what came of it."""
        call = found(policies.visible(ToolCall.objects.all(), self.who, "run__project"), call_id)
        return Response(self.selected(ToolCallResource(call).data))


class ExportView(ListView):
    required_scopes: ClassVar = {"GET": "trajectories:read"}
    renderer_classes = (JsonLinesRenderer, StrictJsonRenderer)
    model, schema_class = Trajectory, TrajectoryResource
    filterset_class = TrajectoryFilters

    def known_parameters(self, request: Request) -> list[str]:
        return list(TrajectoryFilters.base_filters)

    def rows(self) -> QuerySet[Trajectory]:
        """As in the list, but with all that one has."""
        return trajectory_list(self.get_run(), history="superseded" in self.request.query_params).defer(None)

    @extend_schema(summary="Export trajectories", responses={(200, "application/x-ndjson"): TrajectoryResource})
    def get(self, request: Request, run_id: str) -> StreamingHttpResponse:
        """All trajectories that match, as JSON lines: each is what reading that trajectory answers."""
        lines = exported(self.filter_queryset(self.get_queryset()))
        body = in_threads(lines) if isinstance(request._request, ASGIRequest) else lines
        name = f"{run_id}-trajectories.ndjson"
        return StreamingHttpResponse(
            body,
            content_type="application/x-ndjson",
            headers={"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"},
        )


def exported(rows: QuerySet[Trajectory]) -> Iterator[bytes]:
    """One line a trajectory, read through a cursor on the server: no more than a chunk is in memory."""
    turns = Prefetch("turns", Turn.objects.order_by("position"))
    calls = Prefetch("calls", ToolCall.objects.order_by("turn", "position"))
    for trajectory in rows.order_by("id").prefetch_related(turns, calls).iterator(chunk_size=EXPORT_CHUNK):
        told = [
            turn_of(turn, [call for call in trajectory.calls.all() if call.turn == turn.position])
            for turn in trajectory.turns.all()
        ]
        yield strict_json(TrajectoryResource(trajectory, context={"turns": told}).data) + b"\n"


async def in_threads(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The lines for an ASGI server, which would collect a plain iterator whole before it sends the first byte."""
    following = sync_to_async(lambda: next(lines, None))
    while (line := await following()) is not None:
        yield line
