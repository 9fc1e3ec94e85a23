"""A recipe on its way to a run: what somebody has entered so far, as fields or as TOML, right or wrong.

Both tabs say the same recipe. The form's fields change a TOML text that travels with the page, so a draft needs no
storage, a recipe that was not changed keeps its comments, and nothing typed is lost whatever is wrong with it. Leaves
out judging (``runs.services.check_recipe`` behind both ways) and the run: ``views/new_run.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from engine.contract.job import Recipe
from webapp.recipes.forms import Field, Section, applied, form_of, recipe_of, stages_with_problems
from webapp.recipes.pointers import WHOLE
from webapp.recipes.services import parse_toml, read_toml
from webapp.recipes.toml_text import toml_of
from webapp.runs.services import WrongFields

Tab = Literal["form", "toml"]
_TOLD_VALUES = 5


@dataclass(frozen=True)
class Draft:
    """``text`` is the TOML: what was typed (tab ``toml``) or what ``posted`` changes (tab ``form``). ``touched``: the
    field that somebody is at, whose part stays open."""

    tab: Tab
    text: str
    posted: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    touched: str = ""

    def outcome(self) -> tuple[Recipe, str]:
        """The recipe and its TOML: as it was written where nothing was changed. Raises ``WrongFields``."""
        if self.tab == "toml":
            return parse_toml(self.text), self.text
        base = read_toml(self.text)
        recipe = recipe_of(base, self.posted)
        unchanged = applied(base, self.posted)[0] == base
        return recipe, self.text if unchanged else toml_of(recipe)

    def turned_to(self, tab: Tab) -> "Draft":
        """The same recipe in the other tab; one with errors stays where it is, with what is wrong."""
        try:
            _, text = self.outcome()
        except WrongFields as wrong:
            return self.with_errors(wrong.errors)
        return replace(self, errors={}) if tab == self.tab else Draft(tab, text)

    def with_errors(self, errors: Mapping[str, str]) -> "Draft":
        """A form whose TOML cannot be read has no fields to show: then the TOML is what has to be mended."""
        tab: Tab = "form" if self.tab == "form" and self._readable else "toml"
        return replace(self, tab=tab, errors=errors)

    @property
    def _readable(self) -> bool:
        try:
            read_toml(self.text)
        except WrongFields:
            return False
        return True

    @cached_property
    def data(self) -> dict[str, Any]:
        """The recipe's data as far as it can be read."""
        try:
            data = read_toml(self.text)
        except WrongFields:
            return {}
        return applied(data, self.posted)[0] if self.tab == "form" else data

    @cached_property
    def stages(self) -> list[str]:
        """Stages whose problems may come from a dataset."""
        return stages_with_problems(self.data)

    @cached_property
    def parts(self) -> list["Part"]:
        """The form, in parts that open and close."""
        if self.tab == "toml":
            return []
        plain = form_of(self.data)
        errors = _at_fields(self.errors, plain)
        return _parts(form_of(self.data, posted=self.posted, errors=errors), self.touched)

    @cached_property
    def told(self) -> list["Told"]:
        """Everything that is wrong, for the summary; with the field to go to where there is one."""
        labels = {
            one.pointer: f"{part.title}: {one.label}"
            for part in self.parts
            for section in part.sections
            for one in section.fields
        }
        return [_told(pointer, said, labels) for pointer, said in self.errors.items()]


@dataclass(frozen=True, slots=True)
class Part:
    """A section with the sections below it. ``summary``: what is special about it, while it is closed."""

    id: str
    title: str
    help: str
    sections: tuple[Section, ...]
    is_open: bool
    summary: str


@dataclass(frozen=True, slots=True)
class Told:
    """An error in the summary. ``target``: the element to go to, empty where there is none."""

    label: str
    message: str
    target: str


def read(posted: Mapping[str, str]) -> Draft:
    """The draft in a posted page."""
    tab: Tab = "toml" if posted.get("tab") == "toml" else "form"
    if tab == "toml":
        return Draft(tab, _lines(posted.get("toml", "")))
    fields = {name: _lines(text) for name, text in posted.items() if name.startswith("/")}
    return Draft(tab, _lines(posted.get("source", "")), fields)


def _lines(text: str) -> str:
    """Browsers send CRLF."""
    return text.replace("\r\n", "\n")


def element_of(pointer: str) -> str:
    """The id of a field's input."""
    return "field" + pointer.replace("/", "-")


def _at_fields(errors: Mapping[str, str], sections: list[Section]) -> dict[str, str]:
    """Errors at the fields that people see: one about an entry of a list or a map stands at the whole of it."""
    known = {section.pointer for section in sections} | {one.pointer for section in sections for one in section.fields}
    found: dict[str, list[str]] = {}
    for pointer, said in errors.items():
        found.setdefault(_nearest(pointer, known), []).append(said)
    return {pointer: "; ".join(said) for pointer, said in found.items()}


def _nearest(pointer: str, known: set[str]) -> str:
    while pointer and pointer not in known:
        pointer = pointer.rpartition("/")[0]
    return pointer or WHOLE


def _told(pointer: str, said: str, labels: Mapping[str, str]) -> Told:
    near = _nearest(pointer, set(labels))
    if near in labels:
        return Told(labels[near], said, element_of(near))
    if pointer.startswith("/datasets/"):
        return Told(f"Dataset of {pointer.removeprefix('/datasets/')}", said, "")
    return Told(pointer if pointer != WHOLE else "Recipe", said, "")


def _parts(sections: list[Section], touched: str) -> list[Part]:
    """Sections of level 0, each with what is below it."""
    groups: list[list[Section]] = []
    for section in sections:
        if section.level == 0 or not groups:
            groups.append([])
        groups[-1].append(section)
    return [_part(group, touched, first=place == 0) for place, group in enumerate(groups)]


def _part(group: list[Section], touched: str, *, first: bool) -> Part:
    fields = [one for section in group for one in section.fields]
    wrong = any(section.error for section in group) or any(one.error for one in fields)
    return Part(
        id="part" + group[0].pointer.replace("/", "-"),
        title=group[0].title,
        help=group[0].help,
        sections=tuple(group),
        is_open=first or wrong or touched in {one.pointer for one in fields},
        summary=_summary(fields),
    )


def _summary(fields: list[Field]) -> str:
    """What makes a part differ from what it is by default."""
    special = [f"{one.label.lower()} {one.text}" for one in fields if (one.changed or one.required) and one.text]
    shown = [each if len(each) <= 50 else each[:49] + "…" for each in special if "\n" not in each]
    more = f", and {len(shown) - _TOLD_VALUES} more" if len(shown) > _TOLD_VALUES else ""
    return ", ".join(shown[:_TOLD_VALUES]) + more or "as usual"
