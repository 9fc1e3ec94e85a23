"""The OpenAPI schema: what drf-spectacular cannot see by itself. Views only say summary, body and answer.

From a view's own declarations come: the scope an operation needs, ``fields`` and ``omit``, the parameters of its query,
``Idempotency-Key``, and the errors that every operation has. The schema of a recipe is the engine's own, that of the
sandbox's status the sandbox's.
"""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from engine.contract.job import Recipe
from sandbox.contract import SandboxStatus
from webapp.api.problems import CONTENT_TYPE
from webapp.api.serializers import ProblemJson

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    str,
    OpenApiParameter.HEADER,
    description="Yours, such as a UUID. The same request again within 24 hours gets the same answer, with "
    "`Idempotency-Replayed: true`, and the work is done once. Refused requests are not kept.",
)
FIELDS = OpenApiParameter("fields", str, description="Only these members, with commas between.")
OMIT = OpenApiParameter("omit", str, description="Not these members, with commas between.")

# Errors by status: their names among the schema's shared answers, and what they mean.
ERRORS = {
    "400": ("WrongInput", "Wrong input; `errors` names every wrong part."),
    "401": ("NotLoggedIn", "Not logged in, or the token is unknown, expired or revoked."),
    "403": ("ScopeMissing", "The token lacks the scope that `required_scope` names."),
    "404": ("NotFound", "Not there, or nothing that you may see."),
    "409": ("NotNow", "Not possible now, or a request with this `Idempotency-Key` is being worked on."),
    "413": ("BodyTooLarge", "The body is too large."),
    "415": ("WrongKindOfBody", "The body is of a kind that is not taken here."),
    "422": ("KeyReused", "The `Idempotency-Key` was used for another request."),
    "503": ("Unavailable", "The database or Valkey does not answer; try again after `Retry-After`."),
}
_ALWAYS, _BELOW_A_RESOURCE, _OF_POST = ("400", "401", "403", "503"), ("404",), ("409", "413", "415", "422")


class ApiSchema(AutoSchema):
    """One operation, described from its view."""

    view: Any  # an ApiView

    def get_description(self) -> str:  # type: ignore[override]  # drf-spectacular's has no arguments
        """The method's words, and the scope."""
        said: str = super().get_description() or ""
        scope = self.view.required_scopes.get(self.method, "")
        return f"{said}\n\nScope: `{scope}`." if scope else said

    def get_override_parameters(self) -> list[Any]:
        handler = getattr(self.view, self.method.lower())
        found: list[Any] = [*super().get_override_parameters()]
        if getattr(handler, "idempotent", False):
            found.append(IDEMPOTENCY_KEY)
        if self.method == "GET" and self.view.query_class:
            found.append(self.view.query_class)
        if self.method == "GET" and self.view.schema_class:
            found += [FIELDS, OMIT]
        return found

    def _get_response_bodies(self, direction: Any = "response") -> dict[str, Any]:
        bodies: dict[str, Any] = super()._get_response_bodies(direction)
        self.resolve_serializer(ProblemJson, "response")
        statuses = (
            *_ALWAYS,
            *(_BELOW_A_RESOURCE if "{" in self.path else ()),
            *(_OF_POST if self.method == "POST" else ()),
        )
        for status in statuses:
            bodies.setdefault(status, {"$ref": f"#/components/responses/{ERRORS[status][0]}"})
        return bodies


def add_errors(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """The answers that all operations share. A hook of drf-spectacular."""
    content = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemJson"}}}
    result["components"]["responses"] = {
        name: {"description": said, "content": content} for name, said in sorted(ERRORS.values())
    }
    return result


def add_contracts(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Put what engine and sandbox define beside the platform's resources. A hook of drf-spectacular."""
    add(result, Recipe, mode="validation")
    add(result, SandboxStatus, mode="serialization")
    return result


def add(result: dict[str, Any], model: type[BaseModel], mode: JsonSchemaMode) -> None:
    """A pydantic model and its parts; ``mode``: whether clients send it or get it."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode=mode)
    parts: Mapping[str, Any] = schema.pop("$defs")
    schemas = result["components"]["schemas"]
    taken = {model.__name__, *parts} & set(schemas)
    if taken:
        raise ValueError(f"{model.__name__}'s schema and another share a name: {', '.join(sorted(taken))}")
    result["components"]["schemas"] = dict(sorted({**schemas, **parts, model.__name__: schema}.items()))
