"""What is served: the model folder that a path means, and how its answers go.

A path is a Hugging Face folder whose tokenizer has the protocol's tags, or the folder of a run: its newest checkpoint,
with the recipe's tools and the limits of its last stage that samples. Leaves out starting it: ``opening.py``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.contract.job import Recipe
from engine.contract.models import missing_files
from engine.contract.resources import RolloutResources, SandboxResources
from engine.contract.stages import EvalStage, RlStage, RolloutStage
from engine.rollout.agent import TurnLimits
from engine.sink.run_folder import RunFolder
from engine.stages import commit


class NotServable(Exception):
    """There is no model to serve at the path; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What whoever serves wants; None, or no tools, is as the path has it."""

    kind: Literal["vllm", "scripted"] = "vllm"
    engines: int = 1
    kv_cache_mb: int | None = None
    tools: tuple[str, ...] = ()
    context_tokens: int | None = None
    max_turns: int | None = None
    max_response_tokens: int | None = None
    tool_response_chars: int | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A model folder, the names of its tools, and limits."""

    name: str
    folder: Path
    tools: tuple[str, ...]
    limits: TurnLimits
    engines: RolloutResources
    sandbox: SandboxResources


def find(path: Path, wishes: Wishes) -> Served:
    """What is at ``path``. Raises ``NotServable``, and ``RunFolderError`` for the folder of a run that is damaged."""
    if (path / "job.json").exists():
        return _of_run(RunFolder.open(path), wishes)
    return _of_folder(path, wishes)


def _of_run(folder: RunFolder, wishes: Wishes) -> Served:
    recipe = folder.job.recipe
    points = [point for stage in recipe.stages if (point := commit.latest(folder, stage.name))]
    if not points:
        raise NotServable(f"{folder.path} has no checkpoint yet: a stage that trains has to come to one first")
    model = points[-1].model
    return Served(
        name=f"{recipe.name}-{model.parent.parent.name}-{model.parent.name}",
        folder=model,
        tools=wishes.tools or recipe.tools,
        limits=_limits(_sampling_stage(recipe), recipe.model.context_tokens, recipe.sandbox, wishes),
        engines=_engines(recipe.rollout, wishes),
        sandbox=recipe.sandbox,
    )


def _sampling_stage(recipe: Recipe) -> RolloutStage:
    """The last stage that samples; a run that only learns from examples has the usual limits."""
    sampling = [stage for stage in recipe.stages if isinstance(stage, RlStage | EvalStage)]
    return sampling[-1] if sampling else _usual(recipe.model.context_tokens)


def _of_folder(path: Path, wishes: Wishes) -> Served:
    if missing := missing_files(path):
        raise NotServable(f"{path} is no run (no job.json) and no model folder: {', '.join(missing)} missing")
    config = _config(path / "config.json")
    context = int(config.get("max_position_embeddings") or 0) or wishes.context_tokens
    if context is None:
        raise NotServable(f"{path / 'config.json'} has no max_position_embeddings: give --context-tokens")
    half = str(config.get("dtype") or config.get("torch_dtype")) == "bfloat16"
    sandbox = SandboxResources()
    return Served(
        name=path.resolve().name,
        folder=path,
        tools=wishes.tools or ("python",),
        limits=_limits(_usual(context), context, sandbox, wishes),
        engines=_engines(RolloutResources(precision="bf16" if half else "fp32"), wishes),
        sandbox=sandbox,
    )


def _config(file: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise NotServable(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise NotServable(f"{file} should hold a JSON object, it holds a {type(config).__name__}")
    return config


def _engines(like: RolloutResources, wishes: Wishes) -> RolloutResources:
    """Engines of our own, also of a run that has its rollouts from servers elsewhere."""
    own = {"kind": wishes.kind, "engines": wishes.engines, "urls": ()}
    return like.model_copy(update={**own, "kv_cache_mb": wishes.kv_cache_mb or like.kv_cache_mb})


def _usual(context_tokens: int) -> RolloutStage:
    return RolloutStage(name="serve", max_response_tokens=context_tokens)


def _limits(stage: RolloutStage, context_tokens: int, sandbox: SandboxResources, wishes: Wishes) -> TurnLimits:
    context = min(context_tokens, wishes.context_tokens or context_tokens)
    return TurnLimits(
        context_tokens=context,
        max_response_tokens=min(context, wishes.max_response_tokens or stage.max_response_tokens),
        max_turns=wishes.max_turns or stage.max_turns,
        max_calls_per_turn=stage.max_calls_per_turn,
        tool_response_chars=wishes.tool_response_chars or stage.tool_response_chars,
        sandbox=sandbox.limits,
    )
