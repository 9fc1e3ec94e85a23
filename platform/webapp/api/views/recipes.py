"""Recipes and their versions."""

from typing import Any, ClassVar

from django.db.models import OuterRef, QuerySet, Subquery
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.reverse import reverse

from webapp.accounts import policies
from webapp.accounts.models import Project
from webapp.api.bodies import NewRecipe, NewVersion
from webapp.api.filters import YesOrNo
from webapp.api.idempotency import idempotent
from webapp.api.problems import Problem
from webapp.api.serializers import RecipeRow, VersionResource, VersionRow
from webapp.api.views.base import ApiView, ListView, found, project_of, user_of, wrong_fields
from webapp.recipes.models import Recipe, RecipeVersion
from webapp.recipes.services import save_version
from webapp.runs.services import WrongFields


def with_newest(recipes: QuerySet[Recipe]) -> QuerySet[Any]:
    """Recipes with id and number of their newest version."""
    newest = RecipeVersion.objects.filter(recipe=OuterRef("pk")).order_by("-number")
    return recipes.annotate(
        newest_id=Subquery(newest.values("pk")[:1]), newest_number=Subquery(newest.values("number")[:1])
    )


class RecipeFilters(filters.FilterSet):  # type: ignore[misc]
    project = filters.CharFilter(label="Project id.")
    name = filters.CharFilter(label="Name, exactly.")
    built_in = YesOrNo("project", "isnull", label="Whether it came with Starloom.")


class RecipeList(ListView):
    required_scopes: ClassVar = {"GET": "runs:read", "POST": "runs:write"}
    model, schema_class = Recipe, RecipeRow
    filterset_class = RecipeFilters
    orderings: ClassVar = {"name": ("name", "id"), "id": ("id",), "created_at": ("id",)}
    default_ordering = "name"

    def rows(self) -> QuerySet[Recipe]:
        return with_newest(policies.visible_recipes(Recipe.objects.filter(archived_at__isnull=True), self.who))

    @extend_schema(summary="List recipes", responses=RecipeRow(many=True))
    def get(self, request: Request) -> Response:
        """Your recipes and the built-in ones, by name."""
        return self.answer(lambda recipe: RecipeRow(recipe).data)

    @extend_schema(summary="Save a recipe", request=NewRecipe, responses={201: VersionResource})
    @idempotent()
    def post(self, request: Request) -> Response:
        """Save TOML as a version of the project's recipe of that name, which is made where there is none. What equals
        the newest version is that version."""
        body = NewRecipe(data=request.data)
        body.is_valid(raise_exception=True)
        asked = body.validated_data
        return saved(request, project_of(self.who, asked.get("project")), asked["name"], asked["toml"].text)


def saved(request: Request, project: Project, name: str, toml: str) -> Response:
    """The saved version as an answer. Raises ``WrongInput``."""
    try:
        version = save_version(user=user_of(request), project=project, name=name, toml=toml)
    except WrongFields as error:
        raise wrong_fields(error) from error
    where = reverse("api:recipe_version", [version.recipe_id, version.number], request=request)
    return Response(VersionResource(version).data, 201, headers={"Location": where})


class RecipeView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    schema_class = RecipeRow

    @extend_schema(summary="Read a recipe", responses=RecipeRow)
    def get(self, request: Request, recipe_id: str) -> Response:
        """A recipe and which version is its newest."""
        recipes = with_newest(policies.visible_recipes(Recipe.objects.all(), self.who))
        return Response(self.selected(RecipeRow(found(recipes, recipe_id)).data))


class VersionList(ListView):
    required_scopes: ClassVar = {"GET": "runs:read", "POST": "runs:write"}
    model, schema_class = RecipeVersion, VersionRow
    orderings: ClassVar = {"number": ("number", "id")}
    default_ordering = "-number"

    def recipe(self) -> Recipe:
        return found(policies.visible_recipes(Recipe.objects.all(), self.who), self.kwargs["recipe_id"])

    def rows(self) -> QuerySet[RecipeVersion]:
        return self.recipe().versions.defer("toml", "spec").select_related("created_by")

    @extend_schema(summary="List a recipe's versions", responses=VersionRow(many=True))
    def get(self, request: Request, recipe_id: str) -> Response:
        """Versions, newest first, without their texts."""
        return self.answer(lambda version: VersionRow(version).data)

    @extend_schema(summary="Save a version", request=NewVersion, responses={201: VersionResource})
    @idempotent()
    def post(self, request: Request, recipe_id: str) -> Response:
        """Save TOML as the recipe's next version. What equals the newest version is that version."""
        recipe = self.recipe()
        if recipe.project is None:
            said = "This recipe came with Starloom. Save yours under a name of its own: POST /api/v1/recipes."
            raise Problem(409, "Built in", said, "built_in")
        body = NewVersion(data=request.data)
        body.is_valid(raise_exception=True)
        return saved(request, recipe.project, recipe.name, body.validated_data["toml"].text)


class VersionView(ApiView):
    required_scopes: ClassVar = {"GET": "runs:read"}
    schema_class = VersionResource

    @extend_schema(summary="Read a version", responses=VersionResource)
    def get(self, request: Request, recipe_id: str, number: int) -> Response:
        """A version as TOML and as JSON with every default filled in."""
        recipes = policies.visible_recipes(Recipe.objects.filter(pk=recipe_id), self.who)
        versions = RecipeVersion.objects.filter(recipe__in=recipes, number=number).select_related("created_by")
        pk = versions.values_list("pk", flat=True).first() or ""
        return Response(self.selected(VersionResource(found(versions, pk)).data))
