"""Datasets: list, detail, upload."""

from collections.abc import Mapping
from typing import IO, Any, ClassVar, cast

from django.db.models import QuerySet
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from webapp.accounts import policies
from webapp.api.bodies import NewDataset
from webapp.api.idempotency import idempotent
from webapp.api.parsers import DATASET_LIMIT, JsonLinesParser, OtherJsonLinesParser, UploadParser
from webapp.api.problems import Problem, WrongInput
from webapp.api.serializers import DatasetResource
from webapp.api.views.base import ApiView, ListView, found, project_of, wrong_fields
from webapp.datasets.models import Dataset
from webapp.datasets.queries import dataset_list
from webapp.datasets.services import DatasetRefused, upload
from webapp.runs.services import WrongFields


class DatasetFilters(filters.FilterSet):  # type: ignore[misc]
    project = filters.CharFilter(label="Project id.")
    name = filters.CharFilter(label="Name, exactly.")


class DatasetList(ListView):
    required_scopes: ClassVar = {"GET": "runs:read", "POST": "datasets:write"}
    parser_classes = (UploadParser, JsonLinesParser, OtherJsonLinesParser)
    body_limit = DATASET_LIMIT
    post_parameters = ("name", "project")
    model, schema_class = Dataset, DatasetResource
    filterset_class = DatasetFilters
    orderings: ClassVar = {"id": ("id",), "created_at": ("id",)}

    def rows(self) -> QuerySet[Dataset]:
        return dataset_list(self.who)

    @extend_schema(summary="List datasets", responses=DatasetResource(many=True))
    def get(self, request: Request) -> Response:
        """Problem sets, newest first; each upload under the same name is a version."""
        return self.answer(lambda dataset: DatasetResource(dataset).data)

    @extend_schema(
        summary="Upload a dataset",
        parameters=[
            OpenApiParameter("name", str, description="Name, when the body is the file itself."),
            OpenApiParameter("project", str, description="Project id, when the body is the file itself."),
        ],
        request={
            "multipart/form-data": NewDataset,
            "application/x-ndjson": {
                "type": "string",
                "description": "The file itself; then `name` is in the address.",
            },
        },
        responses={201: DatasetResource},
    )
    @idempotent()
    def post(self, request: Request) -> Response:
        """Upload JSON lines with `problem` and `answer`, at most 256 MB, as a form or as the body itself. Wrong lines
        are told with their numbers in `errors`, and then nothing is stored."""
        name, project_id, file = asked_upload(request)
        project = project_of(self.who, project_id)
        try:
            dataset = upload(user=self.who, project=project, name=name, file=file)
        except DatasetRefused as error:
            raise refused(error) from error
        except WrongFields as error:
            raise wrong_fields(error) from error
        where = reverse("api:dataset", [dataset.pk], request=request)
        return Response(DatasetResource(dataset).data, 201, headers={"Location": where})


def asked_upload(request: Request) -> tuple[str, str | None, IO[bytes]]:
    """Name, project and file, from the form or from address and body. Raises ``WrongInput``."""
    data = cast(Mapping[str, Any], request.data)  # these parsers make mappings only
    given: dict[str, str] = {**request.query_params.dict(), **{key: data[key] for key in data if key != "file"}}
    unknown = set(given) - {"name", "project"}
    errors = [{"pointer": f"/{key}", "message": "unknown; known are: file, name, project"} for key in sorted(unknown)]
    file: Any = data.get("file")
    if not hasattr(file, "read"):
        errors.append({"pointer": "/file", "message": "expected a file of JSON lines, as a form field or as the body"})
    if not given.get("name"):
        errors.append({"pointer": "/name", "message": "expected a name: a form field, or ?name= with a plain body"})
    errors += [
        {"pointer": f"/{key}", "message": "must not contain the NUL character"}
        for key, value in given.items()
        if "\x00" in value
    ]
    if errors:
        raise WrongInput(errors)
    return given["name"], given.get("project"), file


def refused(error: DatasetRefused) -> Problem:
    """Which lines cannot be, as an answer."""
    lines = [{"pointer": "/file", "line": each.line, "message": each.message} for each in error.errors]
    return Problem(
        400,
        "Wrong lines",
        f"{error.total} lines cannot be used; the first {len(lines)} are listed. Nothing was stored.",
        "wrong_lines",
        errors=lines,
        total=error.total,
    )


class DatasetView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    schema_class = DatasetResource

    @extend_schema(summary="Read a dataset", responses=DatasetResource)
    def get(self, request: Request, dataset_id: str) -> Response:
        """A version of a problem set."""
        rows = policies.visible(Dataset.objects.select_related("created_by"), self.who)
        return Response(self.selected(DatasetResource(found(rows, dataset_id)).data))
