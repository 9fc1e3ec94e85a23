"""How the sandbox is: its nodes and its queue, asked for anew by every request. Its fields are the sandbox's own."""

from typing import ClassVar

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from sandbox.contract import SandboxUnavailable
from webapp.api.problems import Problem
from webapp.api.views.base import ApiView
from webapp.machine import sandbox_door

SANDBOX_SCHEMA = {"$ref": "#/components/schemas/SandboxStatus"}


class SandboxView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}

    @extend_schema(summary="Read how the sandbox is", responses={(200, "application/json"): SANDBOX_SCHEMA})
    def get(self, request: Request) -> Response:
        """The nodes that run the programs of models, and the calls that wait for one. 503 with the code
        `sandbox_unavailable` where none can be reached within two seconds."""
        try:
            return Response(sandbox_door.status(settings.SANDBOX).model_dump())
        except SandboxUnavailable as error:
            raise Problem(503, "Sandbox not reachable", str(error), "sandbox_unavailable") from error
