"""Whatever comes in, what goes out is an answer or a problem: tried with text and JSON that nobody would think of."""

import tomllib
from copy import deepcopy
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from tests.webapp.support import RECIPE
from webapp.api.pagination import KeysetPagination
from webapp.api.views.runs import RunFilters
from webapp.api.views.trajectories import TrajectoryFilters
from webapp.runs.models import Run

LISTS = {
    "": [*RunFilters.base_filters, *KeysetPagination.parameters, "fields", "omit"],
    "/trajectories": [*TrajectoryFilters.base_filters, *KeysetPagination.parameters],
    "/series": ["keys", "from", "to", "max_points"],
    "/logs": ["after", "level", "limit"],
    "/updates": ["since"],
}
PARAMETERS = [(part, name) for part, names in LISTS.items() for name in names]
NASTY = st.sampled_from(
    ["\x00", "1e400", "nan", "9" * 40, "-1", "٣", "1_0", "run_" + "0" * 26, "9999-12-31T23:59:59-23:59"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=6,
)
# One user and one run for all examples: what an example writes is rolled back.
SHARED = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in nested data something could be replaced."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(place for key, below in items for place in places(below, (*above, key)))]


RECIPE_DATA = tomllib.loads(RECIPE)
PLACES = [place for place in places(RECIPE_DATA) if place]


def undone(request: Any) -> Any:
    """The answer to a request whose writes are rolled back."""
    with transaction.atomic():
        answer = request()
        transaction.set_rollback(True)
    return answer


@SHARED
@given(where=st.sampled_from(PARAMETERS), value=st.text(max_size=30) | NASTY)
def test_no_value_of_a_parameter_is_a_500(api: APIClient, run: Run, where: tuple[str, str], value: str) -> None:
    part, name = where
    url = f"/api/v1/runs/{run.pk}{part}" if part else "/api/v1/runs"
    assert undone(lambda: api.get(url, {name: value})).status_code in (200, 400)


@SHARED
@given(place=st.sampled_from(PLACES), value=VALUES)
def test_no_value_in_a_recipe_is_a_500(api: APIClient, run: Run, place: tuple[Any, ...], value: Any) -> None:
    recipe: Any = deepcopy(RECIPE_DATA)
    inner = recipe
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    answer = undone(lambda: api.post("/api/v1/runs", {"recipe": recipe}, format="json"))
    assert answer.status_code in (201, 400), answer.content


@pytest.mark.parametrize("url", ["/api/v1/tokens", "/api/v1/runs"])
@SHARED
@given(body=VALUES)
def test_no_body_is_a_500(api: APIClient, url: str, body: Any) -> None:
    assert undone(lambda: api.post(url, body, format="json")).status_code == 400
