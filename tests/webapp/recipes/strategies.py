"""Recipes made at random from their schema: data as somebody may give it, sparse or not, that is a right recipe."""

from typing import Any

from hypothesis import strategies as st

from webapp.recipes import schema
from webapp.recipes.schema import Schema

ELSEWHERE = {"FolderModel", "FileProblems"}
"""What needs files."""

_characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
# Python and pydantic know different versions of Unicode, so that they differ on what \w is.
_ASCII = st.characters(codec="ascii")


def values(place: Schema) -> st.SearchStrategy[Any]:
    """What may stand at a place of the schema."""
    place = schema.resolved(place)
    if schema.is_union(place):
        return st.one_of([values(each) for each in schema.members(place).values() if each["title"] not in ELSEWHERE])
    if "properties" in place:
        return _objects(place)
    if "const" in place:
        return st.just(place["const"])
    if "enum" in place:
        return st.sampled_from(place["enum"])
    makers = {
        "boolean": lambda place: st.booleans(),
        "integer": _integers,
        "number": _numbers,
        "string": _strings,
        "array": _arrays,
        "object": _maps,
    }
    return makers[place["type"]](place)


def _objects(place: Schema) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: values(each) for name, each in place["properties"].items()}
    needed = {name for name in fields if name in place.get("required", ()) or name == "kind"}
    return st.fixed_dictionaries(
        {name: fields[name] for name in fields if name in needed},
        optional={name: fields[name] for name in fields if name not in needed},
    )


def _integers(place: Schema) -> st.SearchStrategy[int]:
    low = place.get("minimum", place.get("exclusiveMinimum", -1) + 1)
    return st.integers(low, place.get("maximum", 1_000_000))


def _numbers(place: Schema) -> st.SearchStrategy[float]:
    low = place.get("minimum", place.get("exclusiveMinimum"))
    high = place.get("maximum", place.get("exclusiveMaximum", 1e12))
    exclusive = {"exclude_min": "exclusiveMinimum" in place, "exclude_max": "exclusiveMaximum" in place}
    return st.floats(low, high, **exclusive, allow_nan=False)


def _strings(place: Schema) -> st.SearchStrategy[str]:
    if "pattern" in place:
        return st.from_regex(place["pattern"], fullmatch=True, alphabet=_ASCII).filter(
            lambda text: not text.endswith("\n")
        )
    return st.text(_characters, min_size=place.get("minLength", 0), max_size=place.get("maxLength", 30))


def _arrays(place: Schema) -> st.SearchStrategy[list[Any]]:
    if "prefixItems" in place:
        return st.tuples(*[values(each) for each in place["prefixItems"]]).map(list)
    return st.lists(values(place["items"]), min_size=place.get("minItems", 0), max_size=3)


def _maps(place: Schema) -> st.SearchStrategy[dict[str, Any]]:
    keys = st.integers(1, 6).map(str)
    return st.dictionaries(keys, values(place["additionalProperties"]), min_size=place.get("minProperties", 0))


@st.composite
def recipe_data(draw: st.DrawFn) -> dict[str, Any]:
    """The data of a right recipe: what the schema allows, made to keep the rules about several fields."""
    data: dict[str, Any] = draw(values(schema.root()))
    for number, stage in enumerate(data["stages"]):
        stage["name"] = f"{stage['name'][:30]}-{number}"
        if stage["kind"] == "rl":
            _keep_fewer(stage)
    lengths = [stage.get("max_tokens", stage.get("max_response_tokens", 320)) for stage in data["stages"]]
    model = data["model"]
    model["context_tokens"] = max(64, *lengths, model.get("context_tokens", 0))
    model["hidden_size"] = model.get("heads", 4) * draw(st.integers(1, 8))
    if "tools" in data and "python" not in data["tools"]:  # SFT's trajectories call it
        data["tools"].append("python")
    if data.get("learner", {}).get("offload_optimizer"):
        data["learner"]["zero_stage"] = 2
    if "rollout" in data:
        _address(data["rollout"], data["stages"])
    return data


def _address(rollout: dict[str, Any], stages: list[dict[str, Any]]) -> None:
    """Servers elsewhere have addresses, engines of our own none; what takes no new weights only evaluates."""
    rollout.pop("urls", None)
    if rollout.get("kind") == "openai" and any(stage["kind"] != "eval" for stage in stages):
        rollout["kind"] = "sglang"
    if rollout.get("kind") in ("sglang", "openai"):
        rollout["urls"] = ["http://gpu-1:30000", "https://gpu-2:30000/v1"]


def _keep_fewer(stage: dict[str, Any]) -> None:
    rollouts = stage.setdefault("rollouts_per_problem", 16)
    keeps_all = stage.get("downsampling", {}).get("kind") == "keep_all"
    stage["keep_per_problem"] = rollouts if keeps_all else min(rollouts, stage.get("keep_per_problem", 8))
