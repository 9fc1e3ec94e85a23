"""Filters of lists by django-filter's names (``reward__gte=``); what is not known or cannot be meant is refused.

A parameter that is ignored would answer another question than the one asked: it is a 400 that lists what there is.
Leaves out which list has which filters: they stand beside the views.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC
from typing import Any, ClassVar

from django import forms
from django.http import QueryDict
from django_filters import rest_framework as filters
from django_filters.fields import IsoDateTimeField
from drf_spectacular.drainage import set_override

from webapp.api.problems import WrongInput

MAX_INTEGER = 2**31 - 1


def refuse_unknown(given: QueryDict, known: Iterable[str], many: Collection[str] = ()) -> None:
    """Raise ``WrongInput`` for parameters that are not known, given twice (but for ``many``), or hold NUL."""
    names = sorted(set(known))
    errors = []
    for name, values in given.lists():
        if name not in names:
            shown = name.replace("\x00", "\\x00")[:80]
            listed = ", ".join(names) or "none"
            errors.append({"parameter": shown, "message": f"unknown; known are: {listed}", "code": "unknown_parameter"})
        elif len(values) > 1 and name not in many:
            errors.append({"parameter": name, "message": "given more than once", "code": "given_twice"})
        elif any("\x00" in value for value in values):
            errors.append({"parameter": name, "message": "must not contain the NUL character", "code": "invalid"})
    if errors:
        raise WrongInput(errors, code=str(errors[0]["code"]))


class StrictFilterBackend(filters.DjangoFilterBackend):  # type: ignore[misc]
    """django-filter, whose complaints name the parameter."""

    def filter_queryset(self, request: Any, queryset: Any, view: Any) -> Any:
        filterset = self.get_filterset(request, queryset, view)
        if filterset is None:
            return queryset
        if not filterset.is_valid():
            raise wrong_parameters(filterset.errors.get_json_data())
        return filterset.qs


def wrong_parameters(errors: Mapping[str, Iterable[Mapping[str, str]]]) -> WrongInput:
    """Django's form errors as a problem."""
    return WrongInput(
        [
            {"parameter": name, "message": item["message"], "code": item["code"] or "invalid"}
            for name, items in errors.items()
            for item in items
        ]
    )


class FiniteField(forms.FloatField):
    """A finite number; anything else gets one message."""

    default_error_messages = {"invalid": "expected a finite number"}  # noqa: RUF012  (Django's way)


class YesOrNoField(forms.Field):
    """true or false, and nothing that merely looks like it."""

    def to_python(self, value: Any) -> bool | None:
        if value in self.empty_values:
            return None
        if value not in ("true", "false"):
            raise forms.ValidationError("expected true or false", code="invalid")
        return bool(value == "true")


class MomentField(IsoDateTimeField):  # type: ignore[misc]
    """A moment in ISO 8601. Without an offset it is UTC, so that there is no hour that does not exist."""

    default_error_messages = {  # noqa: RUF012  (Django's way)
        "invalid": "expected a time like 2026-03-30T02:30:00Z or 2026-03-30T02:30:00%2B01:00 (no offset: UTC)"
    }

    def to_python(self, value: Any) -> Any:
        try:
            moment = super().to_python(value)
            return moment and moment.astimezone(UTC)  # an offset that Postgres does not know goes no further
        except (OverflowError, ValueError) as error:
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from error


class Described(filters.Filter):  # type: ignore[misc]
    """A filter whose values the schema describes by ``said``."""

    said: ClassVar[Mapping[str, Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_override(self, "field", {**self.said, "description": kwargs.get("label", "")})


class Number(Described):
    """Compares a floating-point column."""

    field_class = FiniteField
    said: ClassVar = {"type": "number"}


class Count(Described):
    """Compares a column of whole numbers."""

    field_class = forms.IntegerField
    said: ClassVar = {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, min_value=0, max_value=MAX_INTEGER, **kwargs)


class YesOrNo(Described):
    """Compares a column of truth values."""

    field_class = YesOrNoField
    said: ClassVar = {"type": "boolean"}


class Moment(Described):
    """Compares a column of times."""

    field_class = MomentField
    said: ClassVar = {"type": "string", "format": "date-time"}


class Choice(filters.ChoiceFilter):  # type: ignore[misc]
    """One value of a few, which the complaint about another one lists."""

    def __init__(self, *args: Any, choices: Iterable[str], **kwargs: Any) -> None:
        values = list(choices)
        said = {"invalid_choice": f"%(value)s is none of {', '.join(values)}"}
        super().__init__(*args, choices=[(each, each) for each in values], error_messages=said, **kwargs)


class Choices(filters.MultipleChoiceFilter):  # type: ignore[misc]
    """Some values of a few; the parameter may be repeated."""

    repeatable = True

    def __init__(self, *args: Any, choices: Iterable[str], **kwargs: Any) -> None:
        values = list(choices)
        said = {"invalid_choice": f"%(value)s is none of {', '.join(values)}"}
        super().__init__(*args, choices=[(each, each) for each in values], error_messages=said, **kwargs)
