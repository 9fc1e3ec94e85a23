"""The recipe as a form, made from the recipe's schema: sections of fields, and what was posted as a recipe's data.

``form_of`` says what a page shows; ``apply`` puts posted texts, named by JSON pointers, into a recipe's data. Fields
that were not posted, and posted ones that were not changed, leave the data alone, so that a sparse recipe stays
sparse. Names that lead to no place of a recipe (a CSRF token, a dataset's choice) are the page's own and passed over.
A yes-or-no field posts ``true`` or ``false``: a checkbox, which posts nothing when it is off, needs a hidden ``false``
of its name before it.

Leaves out adding and removing stages (that is the TOML tab's), HTML (``webapp.ui``) and judging: ``recipe_of`` asks
``runs.services.check_recipe``.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.contract.job import Recipe
from webapp.recipes import schema
from webapp.recipes.conversions import Kind, NotConverted, kind_of, same, text_of, value_of
from webapp.recipes.labels import kind_label_of, label_of, unit_of
from webapp.recipes.pointers import Parts, parts_of, pointer_of
from webapp.recipes.schema import MISSING, Schema
from webapp.runs.services import WrongFields, check_recipe

Number = int | float

_INDEX = re.compile(r"[0-9]{1,6}")

NOT_HERE = {"FileProblems"}
"""Forms of things that a recipe of the platform may not have: a dataset is chosen beside the recipe."""


@dataclass(frozen=True)
class Choice:
    value: str
    label: str
    help: str = ""


@dataclass(frozen=True)
class Field:
    """One input. ``text`` is what it shows: what was posted, else the value. ``default`` is None where required."""

    pointer: str
    name: str
    label: str
    description: str
    kind: Kind
    value: Any
    text: str
    unit: str = ""
    item: str = ""
    """Of a list or a map: the kind of what is in it."""
    choices: tuple[Choice, ...] = ()
    minimum: Number | None = None
    maximum: Number | None = None
    exclusive_minimum: Number | None = None
    exclusive_maximum: Number | None = None
    pattern: str = ""
    max_length: int | None = None
    required: bool = False
    default: Any = None
    default_text: str = ""
    changed: bool = False
    """Whether the value is another than the default."""
    error: str = ""


@dataclass(frozen=True)
class Section:
    """Fields that belong together: of the recipe itself, the model, a stage (level 0) or a part of these (level 1).

    ``kind`` says which form it has where there are several; its choice is the first field, and choosing another kind
    is a new section.
    """

    title: str
    pointer: str
    help: str
    fields: tuple[Field, ...]
    level: int = 0
    kind: str = ""
    error: str = ""
    """What is wrong with it as a whole."""


@dataclass(frozen=True)
class _Shown:
    """What was posted and what was wrong with it, by pointer."""

    posted: Mapping[str, str]
    errors: Mapping[str, str]


def form_of(
    data: Mapping[str, Any], *, posted: Mapping[str, str] | None = None, errors: Mapping[str, str] | None = None
) -> list[Section]:
    """The form of a recipe's data, whole or sparse, right or wrong. ``posted``: texts to show in place of values, as
    somebody typed them; ``errors``: what to say beside the fields."""
    shown = _Shown(posted or {}, errors or {})
    return list(_sections(schema.root(), data, MISSING, (), shown))


def stages_with_problems(data: Mapping[str, Any]) -> list[str]:
    """Names of the stages whose problems may come from a dataset."""
    stages = data.get("stages")
    given = [_mapping(each) for each in stages] if isinstance(stages, list | tuple) else []
    return [str(stage["name"]) for stage in given if stage.get("kind") in ("rl", "eval") and stage.get("name")]


def posted_of(sections: list[Section]) -> dict[str, str]:
    """What a browser posts when nothing is changed."""
    return {field.pointer: field.text for section in sections for field in section.fields}


def _sections(place: Schema, value: object, default: object, parts: Parts, shown: _Shown) -> Iterator[Section]:
    """The section of an object and, after it, those of the objects in it. ``default``: what it is when not given."""
    values = _mapping(default if value is MISSING else value)
    fields: list[Field] = []
    kind = ""
    if schema.is_union(place):
        kind = _chosen_kind(place, values)
        fields += _kind_field(place, kind, default, parts, shown)
        place = schema.members(place).get(kind, {"description": place.get("description", "")})
        default = default if _mapping(default).get("kind") == kind else MISSING
    inner: list[Section] = []
    for name, raw in place.get("properties", {}).items():
        below = schema.resolved(raw)
        effective = values.get(name, below.get("default", MISSING))
        usual = _mapping(default).get(name, below.get("default", MISSING))
        if schema.is_list_of_objects(below):
            inner += _sections_of_items(below, effective, (*parts, name), shown)
        elif schema.is_object(below):
            inner += _sections(below, values.get(name, MISSING), usual, (*parts, name), shown)
        elif "const" not in below:
            here = _Here((*parts, name), name in place.get("required", ()), below)
            fields.append(_field(here, effective, usual, shown))
    pointer = pointer_of(parts)
    error = shown.errors.get(pointer, "")
    yield Section(_title(parts, values), pointer, _plain(place), tuple(fields), _level(parts), kind, error)
    yield from inner


def _sections_of_items(place: Schema, items: object, parts: Parts, shown: _Shown) -> Iterator[Section]:
    """Those of a list's objects, a recipe's stages."""
    item = schema.resolved(place["items"])
    for number, each in enumerate(items if isinstance(items, list | tuple) else ()):
        yield from _sections(item, each, MISSING, (*parts, number), shown)


@dataclass(frozen=True)
class _Here:
    parts: Parts
    required: bool
    place: Schema


def _field(here: _Here, value: object, default: object, shown: _Shown) -> Field:
    place, pointer, name = here.place, pointer_of(here.parts), str(here.parts[-1])
    inner = place.get("additionalProperties") or place.get("items") or next(iter(place.get("prefixItems", ())), None)
    return Field(
        pointer=pointer,
        name=name,
        label=label_of(name),
        description=_plain(place),
        kind=kind_of(place),
        value=None if value is MISSING else value,
        text=shown.posted.get(pointer, text_of(place, value)),
        unit=unit_of(name),
        item=kind_of(schema.resolved(inner)) if isinstance(inner, Mapping) else "",
        choices=tuple(Choice(str(each), str(each)) for each in place.get("enum", ())),
        minimum=place.get("minimum"),
        maximum=place.get("maximum"),
        exclusive_minimum=place.get("exclusiveMinimum"),
        exclusive_maximum=place.get("exclusiveMaximum"),
        pattern=place.get("pattern", ""),
        max_length=place.get("maxLength"),
        required=here.required,
        default=None if default is MISSING else default,
        default_text=text_of(place, default),
        changed=not here.required and not same(value, default),
        error=shown.errors.get(pointer, ""),
    )


def _kind_field(union: Schema, kind: str, default: object, parts: Parts, shown: _Shown) -> list[Field]:
    """The choice between the forms of an object; none where there is but one, nor for a stage, which is what it is."""
    members = {tag: each for tag, each in schema.members(union).items() if each["title"] not in NOT_HERE or tag == kind}
    if members.keys() == {kind} or (_is_stage(parts) and kind):
        return []
    pointer, usual = pointer_of((*parts, "kind")), _mapping(default).get("kind")
    return [
        Field(
            pointer=pointer,
            name="kind",
            label="Kind",
            description="Another kind has other fields.",
            kind="union",
            value=kind or None,
            text=shown.posted.get(pointer, kind),
            choices=tuple(Choice(tag, kind_label_of(tag), _plain(each)) for tag, each in members.items()),
            required=usual is None,
            default=usual,
            default_text=usual or "",
            changed=usual is not None and usual != kind,
            error=shown.errors.get(pointer, ""),
        )
    ]


def _chosen_kind(union: Schema, values: Mapping[str, Any]) -> str:
    kind = values.get("kind")
    return kind if isinstance(kind, str) and kind in schema.members(union) else ""


def _is_stage(parts: Parts) -> bool:
    return len(parts) == 2 and parts[0] == "stages"


def _title(parts: Parts, values: Mapping[str, Any]) -> str:
    if not parts:
        return "Recipe"
    if _is_stage(parts):
        return f"Stage {int(parts[1]) + 1}: {values.get('name', '')}".rstrip(": ")
    return label_of(str(parts[-1]))


def _level(parts: Parts) -> int:
    """A stage stands beside the model, not below the recipe."""
    return max(0, len(parts) - (2 if parts[:1] == ("stages",) else 1))


def _plain(place: Schema) -> str:
    """What the schema says of a place; of a class, its first paragraph."""
    said: str = place.get("description", "")
    return " ".join(said.partition("\n\n")[0].replace("`", "").split())


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- what was posted


def recipe_of(base: Mapping[str, Any], posted: Mapping[str, str]) -> Recipe:
    """The recipe that the form says. Raises ``WrongFields`` with everything that is wrong at once."""
    data, wrong = applied(base, posted)
    try:
        recipe = check_recipe(data)
    except WrongFields as error:
        raise WrongFields({**error.errors, **wrong}) from error
    if wrong:
        raise WrongFields(wrong)
    return recipe


def apply(base: Mapping[str, Any], posted: Mapping[str, str]) -> dict[str, Any]:
    """A recipe's data with what was posted in it. Raises ``WrongFields`` for texts that are no values."""
    data, wrong = applied(base, posted)
    if wrong:
        raise WrongFields(wrong)
    return data


def applied(base: Mapping[str, Any], posted: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """A recipe's data with all that could be applied, and what was wrong with the rest by pointer: for a page that
    shows the form again. Choices of kinds come first, outer ones before inner ones."""
    data: dict[str, Any] = copy.deepcopy(dict(base))
    wrong: dict[str, str] = {}
    for pointer in sorted(posted, key=lambda each: (not each.endswith("/kind"), each.count("/"))):
        parts = parts_of(pointer)
        if not pointer.startswith("/") or not parts or parts[0] not in schema.root()["properties"]:
            continue
        try:
            _put(data, parts, posted[pointer])
        except NotConverted as error:
            wrong[pointer] = str(error)
    return data, wrong


@dataclass
class _Walk:
    """A place in the data being changed: what is there (or would be), and what has to be there."""

    place: Schema
    value: Any


def _put(data: dict[str, Any], parts: tuple[str, ...], text: str) -> None:
    """Change one value, if the text means another than is there. Raises ``NotConverted``."""
    *above, name = parts
    steps = _way(data, above)
    here = steps[-1]
    if schema.is_union(here.place):
        if name == "kind":
            _choose(data, above, here, text)
            return
        member = schema.members(here.place).get(_chosen_kind(here.place, _mapping(here.value)), {})
        if name not in member.get("properties", {}) and _is_of_another_kind(here.place, name):
            return
        place = schema.child(member, name)
    else:
        place = schema.child(here.place, name)
    if place is None or schema.is_object(place) or schema.is_list_of_objects(place):
        raise NotConverted("no such field")
    current = _mapping(here.value).get(name, place.get("default", MISSING))
    if current is MISSING and not text and kind_of(place) == "text":
        return
    value = value_of(place, text)
    if not same(value, current):
        _container(data, above)[name] = value


def _is_of_another_kind(union: Schema, name: str) -> bool:
    """A field of the kind that was chosen before; its text is of no use any more."""
    return any(name in member["properties"] for member in schema.members(union).values())


def _choose(data: dict[str, Any], above: list[str], here: _Walk, kind: str) -> None:
    """Give an object another kind; what both kinds have stays."""
    members = schema.members(here.place)
    if kind not in members:
        raise NotConverted(f"expected one of {', '.join(members)}, given {kind!r:.60}")
    if _mapping(here.value).get("kind") == kind:
        return
    container = _container(data, above)
    kept = {name: value for name, value in container.items() if name in members[kind]["properties"]}
    container.clear()
    container.update({**kept, "kind": kind})


def _way(data: dict[str, Any], parts: list[str]) -> list[_Walk]:
    """The places from the recipe down to ``parts``. What is not given is what it is by default."""
    steps = [_Walk(schema.root(), data)]
    for part in parts:
        steps.append(_step(steps[-1], part))
    return steps


def _step(above: _Walk, part: str) -> _Walk:
    place, value = above.place, above.value
    if schema.is_list_of_objects(place):
        if not _INDEX.fullmatch(part) or not isinstance(value, list | tuple) or int(part) >= len(value):
            raise NotConverted("no such field")
        return _Walk(schema.resolved(place["items"]), value[int(part)])
    if schema.is_union(place):
        place = schema.members(place).get(_chosen_kind(place, _mapping(value)), {})
    below = schema.child(place, part)
    if below is None or not (schema.is_object(below) or schema.is_list_of_objects(below)):
        raise NotConverted("no such field")
    return _Walk(below, _mapping(value).get(part, below.get("default", MISSING)))


def _container(data: dict[str, Any], parts: list[str]) -> dict[str, Any]:
    """The object at ``parts`` to write into. One that is not given first becomes what it is by default: given in
    part, its other fields would get the defaults of its class, which may be others."""
    container: Any = data
    for depth, part in enumerate(parts, start=1):
        if isinstance(container, list | tuple):
            container = container[int(part)]
            continue
        if not isinstance(container.get(part), dict | list | tuple):
            usual = _step(_way(data, parts[: depth - 1])[-1], part).value
            container[part] = copy.deepcopy(dict(_mapping(usual)))
        container = container[part]
    found: dict[str, Any] = container
    return found
