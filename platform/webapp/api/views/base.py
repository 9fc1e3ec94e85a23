"""What all views of REST share: limits of a body, strict parameters, ``fields=`` and ``omit=``, rows that one may see.

Leaves out pagination, filters and errors, which have modules of their own.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest
from rest_framework.exceptions import NotAuthenticated
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer, Serializer
from rest_framework.views import APIView

from webapp.accounts import policies
from webapp.accounts.models import Project, User
from webapp.accounts.services import default_project
from webapp.api.filters import refuse_unknown
from webapp.api.pagination import KeysetPagination
from webapp.api.parsers import BODY_LIMIT, body_too_large
from webapp.api.problems import Problem, WrongInput, below_key
from webapp.runs.models import Run
from webapp.runs.services import WrongFields

M = TypeVar("M", bound=Model)
SELECTION = ("fields", "omit")


class ApiView(APIView):
    """One address. ``required_scopes``: method -> the scope that a token needs for it."""

    http_method_names = ["get", "head", "post", "delete"]  # noqa: RUF012  (Django's way)
    required_scopes: ClassVar[Mapping[str, str]] = {}
    body_limit: ClassVar[int] = BODY_LIMIT
    query_class: ClassVar[type[Serializer[Any]] | None] = None
    """Parameters of GET, where there are some."""
    post_parameters: ClassVar[Collection[str]] = ()
    schema_class: ClassVar[type[BaseSerializer[Any]] | None] = None
    """What GET answers; with one, ``fields`` and ``omit`` choose among its members."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        refuse_body(request, self.body_limit)
        super().initial(request, *args, **kwargs)
        refuse_unknown(request.query_params, self.known_parameters(request), self.repeatable())

    def permission_denied(self, request: Request, message: str | None = None, code: str | None = None) -> Any:
        if not request.user or not request.user.is_authenticated:
            raise NotAuthenticated("Log in, or send a token: Authorization: Bearer sl_...")
        return super().permission_denied(request, message, code)

    def known_parameters(self, request: Request) -> Iterable[str]:
        if request.method == "POST":
            return self.post_parameters
        if request.method not in ("GET", "HEAD"):
            return ()
        asked = self.query_class().fields if self.query_class else ()
        return (*asked, *(SELECTION if self.schema_class else ()))

    def repeatable(self) -> Collection[str]:
        """Parameters that may come more than once."""
        return ()

    @property
    def who(self) -> User:
        return user_of(self.request)

    def get_run(self) -> Run:
        """The run of the address. Raises 404 also for one that the user may not see."""
        return found(policies.visible(Run.objects.all(), self.who), self.kwargs["run_id"])

    def query(self) -> dict[str, Any]:
        """The checked parameters of GET. Raises ``WrongInput``."""
        assert self.query_class is not None
        asked = self.query_class(data=self.request.query_params)
        if not asked.is_valid():
            errors = [
                {"parameter": name, "message": str(said), "code": said.code}
                for name, all_said in asked.errors.items()
                for said in all_said
            ]
            raise WrongInput(errors)
        return dict(asked.validated_data)

    def selected(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """``data`` with the members that ``fields`` names, without those that ``omit`` names."""
        keep = chosen(self.request, self.schema_class)
        return {name: value for name, value in data.items() if name in keep} if keep is not None else dict(data)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Answers are for who asked, and for now."""
        answer = super().finalize_response(request, response, *args, **kwargs)
        answer.setdefault("Cache-Control", "no-store")
        return answer


class ListView(ApiView, GenericAPIView[Any]):
    """A list: filters, keyset pages, chosen fields. ``orderings``: name -> model fields, the last one unique."""

    orderings: ClassVar[Mapping[str, tuple[str, ...]]] = {"id": ("id",)}
    default_ordering: ClassVar[str] = "-id"
    filterset_class: ClassVar[Any] = None
    model: ClassVar[type[Any]]

    def known_parameters(self, request: Request) -> Iterable[str]:
        if request.method not in ("GET", "HEAD"):
            return super().known_parameters(request)
        filters = self.filterset_class.base_filters if self.filterset_class else ()
        return (*filters, *KeysetPagination.parameters, *SELECTION)

    def repeatable(self) -> Collection[str]:
        filters = self.filterset_class.base_filters if self.filterset_class else {}
        return [name for name, each in filters.items() if getattr(each, "repeatable", False)]

    def rows(self) -> QuerySet[Any]:
        """Rows that the user may see, before filters."""
        raise NotImplementedError

    def get_queryset(self) -> QuerySet[Any]:
        """The generator of the schema has no user and no address to ask ``rows`` with."""
        return self.model.objects.none() if getattr(self, "swagger_fake_view", False) else self.rows()

    def answer(self, render: Callable[[Any], Mapping[str, Any]]) -> Response:
        """The page asked for, each row through ``render`` and with the fields asked for."""
        keep = chosen(self.request, self.schema_class)
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        shown = [render(row) for row in page or ()]
        if keep is not None:
            shown = [{name: value for name, value in row.items() if name in keep} for row in shown]
        return self.get_paginated_response(shown)


def refuse_body(request: HttpRequest | Request, limit: int) -> None:
    """Turn a body away by what its headers say, before anything of it is read."""
    length = request.headers.get("Content-Length", "")
    if length.isdigit() and int(length) > limit:
        raise body_too_large(limit)
    if not length and request.headers.get("Transfer-Encoding"):
        raise Problem(411, "Length required", "Send the body with a Content-Length.", "length_required")


def chosen(request: Request, schema: type[BaseSerializer[Any]] | None) -> frozenset[str] | None:
    """Members asked for by ``fields`` and ``omit``; None for all. Raises ``WrongInput`` for unknown ones."""
    if schema is None or not any(name in request.query_params for name in SELECTION):
        return None
    made = schema()
    assert isinstance(made, Serializer)
    known = list(made.fields)
    asked = {name: [*filter(None, request.query_params.get(name, "").split(","))] for name in SELECTION}
    errors = [
        {"parameter": name, "message": f"unknown: {field:.80}; known are: {', '.join(known)}"}
        for name, names in asked.items()
        for field in names
        if field not in known
    ]
    if errors:
        raise WrongInput(errors, code="unknown_field")
    return frozenset(asked["fields"] or known) - frozenset(asked["omit"])


def user_of(request: Request) -> User:
    """Who asks; permissions have made sure that it is somebody."""
    assert isinstance(request.user, User)
    return request.user


def found(rows: QuerySet[M], key: str) -> M:
    """The row with this primary key. Raises ``Http404``."""
    try:
        return rows.get(pk=key)
    except ObjectDoesNotExist as error:
        raise Http404 from error


def wrong_fields(error: WrongFields, below: str = "") -> WrongInput:
    """A service's complaint as an answer; ``below``: the member of the body that the service was given."""
    prefix = below_key(below) if below else ""
    return WrongInput(
        [{"pointer": prefix + (place if place != "/" else ""), "message": said} for place, said in error.errors.items()]
    )


def project_of(user: User, project_id: str | None) -> Project:
    """The project named, or the user's first. Raises ``WrongInput`` for one that the user does not see."""
    if project_id is None:
        return default_project(user)
    project = policies.projects(user).filter(pk=project_id).first()
    if project is None:
        raise WrongInput([{"pointer": "/project", "message": "no such project"}])
    return project
