"""The engines that a recipe names, not started yet. Leaves out where they run and who uses them (``pool.py``)."""

from pathlib import Path

from engine.contract.job import Recipe
from engine.contract.resources import RolloutResources
from engine.data.render import Renderer
from engine.randomness import stream
from engine.rollout.base import EngineCapacity, RolloutEngine
from engine.rollout.openai_engine import OpenAiEngine
from engine.rollout.scripted_engine import ScriptedEngine
from engine.rollout.scripted_policy import arithmetic_policy
from engine.rollout.sglang_engine import SglangEngine
from engine.rollout.vllm_engine import VllmEngine
from engine.sink.run_folder import RunFolder


def make_engines(recipe: Recipe, folder: RunFolder, renderer: Renderer) -> list[RolloutEngine]:
    """All engines of the run: one for each of ``rollout.urls``, or ``rollout.engines`` of our own."""
    count = len(recipe.rollout.urls) or recipe.rollout.engines
    return [make_engine(recipe, folder, renderer, number) for number in range(count)]


def make_engine(recipe: Recipe, folder: RunFolder, renderer: Renderer, number: int) -> RolloutEngine:
    """Engine ``number`` of the run. Each attempt of a run draws other samples than the one before."""
    resources, context = recipe.rollout, recipe.model.context_tokens
    name = f"{resources.kind}-{number}"
    match resources.kind:
        case "scripted":
            return make_scripted_engine(renderer, name, context_tokens=context, seed=recipe.seed)
        case "sglang":
            return SglangEngine(
                name,
                url=resources.urls[number],
                model_folder=folder.model,
                max_model_tokens=context,
                start_timeout_s=resources.start_timeout_s,
                key_variable=resources.key_variable,
            )
        case "openai":
            return OpenAiEngine(
                name,
                url=resources.urls[number],
                served_model=resources.served_model,
                text=renderer,
                max_model_tokens=context,
                max_running=resources.max_running,
                start_timeout_s=resources.start_timeout_s,
                key_variable=resources.key_variable,
            )
        case "vllm":
            seed = stream(recipe.seed, "engine", *folder.attempts()).getrandbits(31)
            return make_vllm_engine(
                resources, name, model_folder=folder.model, logs=folder.logs, context_tokens=context, seed=seed
            )


def make_vllm_engine(
    resources: RolloutResources, name: str, *, model_folder: Path, logs: Path, context_tokens: int, seed: int
) -> VllmEngine:
    """A vLLM process for a model folder; ``logs`` gets its output."""
    return VllmEngine(
        name,
        model_folder=model_folder,
        runtime_folder=logs,
        kv_cache_mb=resources.kv_cache_mb,
        max_model_tokens=context_tokens,
        max_running=resources.max_running,
        start_timeout_s=resources.start_timeout_s,
        dtype="bfloat16" if resources.precision == "bf16" else "float32",
        seed=seed,
    )


def make_scripted_engine(renderer: Renderer, name: str, *, context_tokens: int, seed: int) -> ScriptedEngine:
    """An engine without a model, with room for 32 rollouts as long as the context."""
    capacity = EngineCapacity(kv_blocks=2 * context_tokens + 1, block_tokens=16, max_model_tokens=context_tokens)
    return ScriptedEngine(name, arithmetic_policy(renderer), capacity=capacity, seed=seed)
