"""A recipe (what a person writes, TOML) and a job (what an engine runs, JSON): the public door of the engine.

Every field carries its unit and meaning once, here; forms, command-line help and documentation are made from it.
Leaves out defaults that depend on the machine: those are said where they are decided.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from engine.contract.base import Strict
from engine.contract.models import Model
from engine.contract.resources import LearnerResources, RolloutResources, SandboxResources, ScoringResources
from engine.contract.stages import AnyStage, EvalStage, RlStage, SftStage, WaitForAll


class RecipeError(Exception):
    """A recipe that cannot be run; ``problems`` names every wrong field and what was expected."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}:\n" + "\n".join(f"  {problem}" for problem in problems))
        self.problems = problems


ToolName = Annotated[str, Field(pattern=r"^(python|python_session|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")]


_YOUNGER: Final[Mapping[str, Mapping[str, object]]] = {
    "": {"tools": ("python",), "scoring": ScoringResources()},
    "rollout": {
        name: RolloutResources.model_fields[name].default
        for name in ("urls", "served_model", "key_variable", "scheduler", "load_every_s")
    },
    "stages": {"stragglers": WaitForAll()},
}
"""Fields younger than runs that people have, and the value with which a recipe means what it meant without them."""


def _younger(part: BaseModel, place: str) -> set[str]:
    """Fields of a part of the recipe that its digest leaves out."""
    return {name for name, value in _YOUNGER[place].items() if getattr(part, name, None) == value}


class Recipe(Strict):
    """Model, ordered stages, resources: all that a run is determined by."""

    name: str = Field(min_length=1, max_length=80, description="What a run of it is called.")
    seed: int = Field(default=0, ge=0, description="Seeds data, sampling of problems and initial weights.")
    notes: tuple[str, ...] = Field(default=(), description="What a reader of the results must know.")
    model: Model
    tools: tuple[ToolName, ...] = Field(
        default=("python",),
        min_length=1,
        description="What the policy may call: `python` (each program alone), `python_session` (variables last for the "
        "rollout), or a tool of your own as `module:attribute`.",
    )
    stages: tuple[AnyStage, ...] = Field(min_length=1)
    rollout: RolloutResources = RolloutResources()
    sandbox: SandboxResources = SandboxResources()
    scoring: ScoringResources = ScoringResources()
    learner: LearnerResources = LearnerResources()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [stage.name for stage in self.stages]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"stage names must be unique, given twice: {', '.join(twice)}")
        if "python" not in self.tools and any(isinstance(stage, SftStage) for stage in self.stages):
            raise ValueError("tools must have python where there is an sft stage: its trajectories call it")
        if self.rollout.kind == "openai" and (trained := [s.name for s in self.stages if not isinstance(s, EvalStage)]):
            raise ValueError(
                f"rollout kind openai takes no new weights, stage {trained[0]} makes some: eval stages only"
            )
        for stage in self.stages:
            length = stage.max_tokens if isinstance(stage, SftStage) else stage.max_response_tokens
            if length > self.model.context_tokens:
                raise ValueError(
                    f"stage {stage.name}: {length} tokens do not fit context_tokens {self.model.context_tokens}"
                )
        return self

    def weighs_sampler(self, stage: RlStage) -> bool:
        """Whether tokens carry the truncated weight min(pi_old / pi_sampler, cap).

        That is where the two differ: in bf16, and where a rollout's tokens are of several policy steps.
        """
        if stage.sampler_weight == "auto":
            return "bf16" in (self.learner.precision, self.rollout.precision) or stage.stragglers.kind == "carry"
        return stage.sampler_weight == "on"

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        plain = self.model_dump(mode="json", exclude=_younger(self, ""))
        plain["rollout"] = self.rollout.model_dump(mode="json", exclude=_younger(self.rollout, "rollout"))
        plain["stages"] = [stage.model_dump(mode="json", exclude=_younger(stage, "stages")) for stage in self.stages]
        canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


class Provenance(Strict):
    """What else a run is determined by: compared when it is resumed (``engine.contract.provenance``)."""

    code: str = Field(description="SHA-256 over the engine's and the sandbox's source files.")
    lock: str = Field(description="SHA-256 over the names and versions of the installed packages.")
    data: dict[str, str] = Field(default_factory=dict, description="Problem file -> SHA-256 of its bytes.")


class JobSpec(Strict):
    """A recipe bound to a run: what is in the run folder's ``job.json``."""

    schema_version: Literal[1] = 1
    run_id: str
    created_at: float = Field(description="Unix time, seconds.")
    digest: str
    recipe: Recipe
    provenance: Provenance | None = Field(default=None, description="None in folders of older engines.")


KIND_MISSING = "field kind is missing: it says which of the possible forms this is"


def describe(error: ValidationError) -> list[str]:
    """One line a wrong field: its place in the file, what was expected, what was given."""
    lines = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"]) or "recipe"
        given = (
            "" if item["type"] in ("missing", "extra_forbidden", "value_error") else f" (given: {item['input']!r:.80})"
        )
        said = KIND_MISSING if item["type"] == "union_tag_not_found" else item["msg"]
        lines.append(f"{place}: {said}{given}")
    return lines


def load_recipe(path: Path) -> Recipe:
    """Read and check a TOML recipe. Raises ``RecipeError`` that names every wrong field, or the line of bad TOML."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(str(path), [f"cannot be read: {error.strerror}"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), [f"is not TOML: {error}"]) from error
    try:
        return Recipe.model_validate(data, context={"folder": path.parent})
    except ValidationError as error:
        raise RecipeError(str(path), describe(error)) from error
