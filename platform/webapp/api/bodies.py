"""Bodies and parameters that clients send: strict, so that a misspelt field is named instead of ignored.

Leaves out rules of what they mean: services refuse, and their complaints get the pointer of the field they were in.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, cast

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from engine.contract.job import Recipe
from webapp.accounts.scopes import SCOPES
from webapp.accounts.services import DEFAULT_DAYS, MOST_DAYS
from webapp.api.problems import below_key
from webapp.api.serializers import RECIPE_SCHEMA
from webapp.recipes.pointers import WHOLE
from webapp.recipes.services import LONGEST, parse_toml
from webapp.runs.services import WrongFields, check_recipe

MAX_REVISION = 2**63 - 1
MAX_SERIES_KEYS = 100


class Body(serializers.Serializer[Any]):
    """An object whose unknown members are errors, together with those of the known ones."""

    def to_internal_value(self, data: Any) -> Any:
        unknown = {key for key in data if key not in self.fields} if isinstance(data, Mapping) else set()
        errors: dict[str, Any] = {
            below_key(str(key)): [f"unknown; known are: {', '.join(self.fields)}"] for key in sorted(unknown)
        }
        try:
            value = super().to_internal_value(data)
        except serializers.ValidationError as error:
            errors = {**cast(Mapping[str, Any], error.detail), **errors}
        if errors:
            raise serializers.ValidationError(errors)
        return value


@extend_schema_field(RECIPE_SCHEMA)
class RecipeField(serializers.Field[Any, Any, Any, Any]):
    """A recipe as JSON; what is wrong in it is told by its place below this field."""

    def to_internal_value(self, data: Any) -> Recipe:
        try:
            return check_recipe(data)
        except WrongFields as error:
            places = {"non_field_errors" if place == WHOLE else place: [said] for place, said in error.errors.items()}
            raise serializers.ValidationError(places) from error


@dataclasses.dataclass(frozen=True)
class Toml:
    """A recipe as written, and what it says."""

    text: str
    recipe: Recipe


@extend_schema_field(OpenApiTypes.STR)
class TomlField(serializers.CharField):
    """A recipe as TOML text. What is wrong in it is told with its line, or its place in the recipe."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_length=LONGEST, trim_whitespace=False, **kwargs)

    def run_validation(self, data: Any = serializers.empty) -> Any:
        text = super().run_validation(data)
        try:
            return Toml(text, parse_toml(text))
        except WrongFields as error:
            said = [text if place == WHOLE else f"{place}: {text}" for place, text in error.errors.items()]
            raise serializers.ValidationError(said) from error


class NewRun(Body):
    """What to run: exactly one of `recipe_version`, `recipe` and `toml`."""

    project = serializers.CharField(required=False, help_text="Project id; without, your first project.")
    name = serializers.CharField(required=False, max_length=120, help_text="Without, the recipe's name.")
    recipe_version = serializers.CharField(required=False, help_text="Id of a saved version.")
    recipe = RecipeField(required=False)
    toml = TomlField(required=False, help_text="A recipe as TOML text.")
    datasets = serializers.DictField(
        child=serializers.CharField(), required=False, help_text="Stage -> id of the dataset its problems come from."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        ways = ("recipe_version", "recipe", "toml")
        given = [way for way in ways if way in attrs]
        if len(given) != 1:
            said = f"give exactly one of {', '.join(ways)}; given: {', '.join(given) or 'none'}"
            raise serializers.ValidationError(said)
        return attrs


class NewCommand(Body):
    reason = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=500, help_text="Kept with the run's history."
    )


class NewRecipe(Body):
    name = serializers.CharField(max_length=80)
    toml = TomlField()
    project = serializers.CharField(required=False, help_text="Project id; without, your first project.")


class NewVersion(Body):
    toml = TomlField()


class NewToken(Body):
    name = serializers.CharField(max_length=80, help_text="What the token is for.")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=list(SCOPES.items())), allow_empty=False)
    days = serializers.IntegerField(default=DEFAULT_DAYS, min_value=1, max_value=MOST_DAYS, help_text="Life in days.")


class NewDataset(serializers.Serializer[Any]):
    """An upload as a form."""

    file = serializers.FileField(help_text="JSON lines with `problem` and `answer`.")
    name = serializers.CharField(max_length=80)
    project = serializers.CharField(required=False, help_text="Project id; without, your first project.")


class SeriesQuery(serializers.Serializer[Any]):
    keys = serializers.CharField(required=False, help_text="Metric keys with commas between; without, no arrays.")
    start = serializers.IntegerField(required=False, min_value=0, max_value=2**31 - 1, help_text="First step.")
    end = serializers.IntegerField(required=False, min_value=0, max_value=2**31 - 1, help_text="Last step.")
    max_points = serializers.IntegerField(
        default=800, min_value=1, help_text="Most buckets a key; more than 5000 gives 5000."
    )

    def get_fields(self) -> dict[str, Any]:
        """``from`` and ``to`` are how the address says it; one of them is no name in Python."""
        fields = super().get_fields()
        names = {"start": "from", "end": "to"}
        for name, field in fields.items():
            field.source = name if name in names else None
        return {names.get(name, name): field for name, field in fields.items()}

    def validate_keys(self, text: str) -> list[str]:
        keys = [*dict.fromkeys(key.strip() for key in text.split(",") if key.strip())]
        if len(keys) > MAX_SERIES_KEYS:
            raise serializers.ValidationError(f"at most {MAX_SERIES_KEYS} keys in one answer")
        return keys


class UpdatesQuery(serializers.Serializer[Any]):
    since = serializers.IntegerField(min_value=0, max_value=MAX_REVISION, help_text="The `cursor` that you have.")


class LogsQuery(serializers.Serializer[Any]):
    after = serializers.CharField(required=False, help_text="`attempt:seq` of the last line that you have.")
    level = serializers.ChoiceField(choices=["info", "warning", "error"], required=False)
    limit = serializers.IntegerField(default=50, min_value=1, help_text="Lines; more than 500 gives 500.")

    def validate_after(self, text: str) -> tuple[int, int]:
        if not re.fullmatch(r"[0-9]{1,9}:[0-9]{1,18}", text, re.ASCII):
            raise serializers.ValidationError("expected attempt:seq, such as 1:250")
        attempt, seq = text.split(":")
        return int(attempt), int(seq)
