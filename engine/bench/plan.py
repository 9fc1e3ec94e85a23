"""How much memory a recipe needs: of one learner rank, by what holds it, and of one rollout engine.

Counted from shapes alone, so that a plan can be made where the model does not fit; imports no torch. Model states are
those of ZeRO (Rajbhandari et al., arXiv 1910.02054, section 3.1: mixed-precision Adam holds 2 N + 2 N + 12 N bytes for
N parameters, of which stages 1, 2, 3 divide optimizer states, gradients and weights among the ranks), as DeepSpeed
0.19 keeps them: with fp32 accumulators beside bf16 gradients, and fp32 masters also of fp32 weights. Activations are
what autograd keeps of transformers' Qwen3 and Llama blocks.

Leaves out the CUDA context (about 0.5 GB), the allocator's fragmentation and workspaces of matrix libraries. What is
really taken: ``engine.bench.learner``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.bench.architecture import Architecture
from engine.contract.job import Recipe
from engine.contract.resources import LearnerResources, RolloutResources
from engine.contract.stages import EvalStage, RlStage, TrainedStage
from engine.environment import GPU_DEVICES
from engine.learner.optim import Optim, bucket_places

Phase = Literal["always", "forward", "recompute", "reduce", "step"]
"""``forward``: its end, when all activations are there. ``recompute``: the backward pass's first layer, where
checkpointing computes it again. ``reduce``: the end of the backward pass. ``step``: the optimizer's."""

Device = Literal["cpu", "cuda"]
BYTES = {"fp32": 4, "bf16": 2}

LIVE = 1_000_000_000
"""Parameters that ZeRO-3 keeps gathered at most: ``stage3_max_live_parameters``."""

LOGIT_BYTES = 16
"""Of one logit at the peak: its log-probability, and for the entropy a clamped one, the exponential, their product."""

LOGIT_GRADIENT_BYTES = 8
"""More where the entropy has a gradient: what its backward pass needs."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that takes memory, and when; ``offloaded`` ones are in main memory."""

    name: str
    size_bytes: int
    why: str
    phase: Phase = "always"
    offloaded: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Of one process: what is always there, and beside it the largest phase of an update."""

    title: str
    items: tuple[Item, ...]

    def total(self, phase: Phase) -> int:
        """Bytes on the device."""
        return sum(item.size_bytes for item in self.items if item.phase == phase and not item.offloaded)

    @property
    def peak_phase(self) -> Phase:
        phases: tuple[Phase, ...] = ("forward", "recompute", "reduce", "step")
        return max(phases, key=self.total)

    @property
    def peak_bytes(self) -> int:
        """On the device."""
        return self.total("always") + self.total(self.peak_phase)

    @property
    def offloaded_bytes(self) -> int:
        return sum(item.size_bytes for item in self.items if item.offloaded)


def plan_recipe(recipe: Recipe) -> list[MemoryPlan]:
    """One plan for each stage that trains, and one of a rollout engine if a stage samples.

    Raises ``UnknownModel`` for a model folder whose parameters we cannot count.
    """
    model = Architecture.of(recipe.model)
    number = recipe.learner.ranks
    whose = "the learner's one rank" if number == 1 else f"each of the learner's {number} ranks"
    plans = [
        plan_learner(model, stage, recipe.learner, title=f"{stage.name}: {whose}")
        for stage in recipe.stages
        if isinstance(stage, TrainedStage)
    ]
    if any(isinstance(stage, RlStage | EvalStage) for stage in recipe.stages) and recipe.rollout.kind == "vllm":
        plans.append(plan_engine(model, recipe.rollout))
    return plans


def device_of(resources: LearnerResources) -> Device:
    """What ``auto`` will find, without asking torch."""
    if resources.device != "auto":
        return resources.device
    return "cuda" if any(Path(device).exists() for device in GPU_DEVICES) else "cpu"


def plan_learner(
    model: Architecture,
    stage: TrainedStage,
    resources: LearnerResources,
    *,
    trained_places: int | None = None,
    title: str = "learner",
) -> MemoryPlan:
    """Weights, gradients and optimizer states by precision, ZeRO stage, offload and LoRA; activations of one pass.

    ``trained_places`` is the most trained tokens of a pass; as long as they are not known, all of its places.
    """
    states = States.of(model, stage, resources)
    reference = isinstance(stage, RlStage) and stage.kl_beta > 0
    return MemoryPlan(
        title, (*states.items(reference=reference), *activations(model, stage, resources, trained_places))
    )


# --- model states ---


@dataclass(frozen=True, slots=True)
class States:
    """What one of ``ranks`` holds of N ``trained`` parameters at a ZeRO ``stage`` (the one DeepSpeed is given)."""

    model: Architecture
    parameters: int
    trained: int
    muon: int
    precision: Literal["fp32", "bf16"]
    stage: int
    ranks: int
    offload: bool
    bucket: int
    device: Device

    @classmethod
    def of(cls, model: Architecture, stage: TrainedStage, resources: LearnerResources) -> "States":
        optim = Optim.of(stage, resources)
        adapters = 0 if stage.lora is None else model.trained_parameters(stage.lora)
        return cls(
            model=model,
            parameters=model.parameters + adapters,
            trained=adapters or model.parameters,
            muon=(adapters or model.layers * model.layer_matrices) if optim.optimizer == "muon" else 0,
            precision=optim.precision,
            stage=optim.zero_stage,
            ranks=resources.ranks,
            offload=optim.offload,
            bucket=bucket_places(adapters or model.parameters),
            device=device_of(resources),
        )

    def items(self, *, reference: bool) -> Iterator[Item]:
        yield self._weights()
        if reference:
            yield Item("reference", self.model.parameters * self._bytes, "the frozen model of the KL term")
        if self.stage > 0:
            yield self._shared("masters", 4 * self._share(self.trained), "fp32 weights that the optimizer moves")
        yield self._shared("optimizer", self._moments, self._moments_in_words)
        yield from self._gradients()
        if self.stage == 3 and self.ranks > 1:
            live = min(self.parameters, LIVE) * self._bytes
            yield Item("gathered weights", live, "layers that a pass has put together", "forward")

    @property
    def _bytes(self) -> int:
        return BYTES[self.precision]

    def _weights(self) -> Item:
        words = f"{self.parameters:,} parameters of {self._bytes} bytes"
        if self.stage == 3:
            return Item("weights", self._share(self.parameters) * self._bytes, words + self._divided)
        return Item("weights", self.parameters * self._bytes, words)

    @property
    def _moments(self) -> int:
        """Adam has two fp32 moments, Muon one."""
        adam, muon = self.trained - self.muon, self.muon
        if self.stage > 0:
            adam, muon = self._share(adam), self._share(muon)
        return 8 * adam + 4 * muon

    @property
    def _moments_in_words(self) -> str:
        return "Muon's fp32 moment of matrices, Adam's two of the rest" if self.muon else "Adam's two fp32 moments"

    def _gradients(self) -> Iterator[Item]:
        """Trained parameters' gradients, what they are added up and reduced in, and Adam's temporaries."""
        full, share = self.trained, self._share(self.trained)
        accumulated = "gradients added up over passes, fp32"
        temporary = "temporaries of the optimizer's step"
        if self.stage == 0:
            yield Item("gradients", 4 * full, accumulated)
            yield Item("reduction", 4 * min(full, self.bucket), "a flat copy that ranks exchange", "reduce")
            yield Item("step", 4 * full, temporary, "step")
            return
        if self.stage == 1:
            yield Item("gradients", 4 * full, accumulated + "; ZeRO 1 keeps all of them")
        else:
            yield self._shared("gradients", 4 * share, accumulated)
        if self.precision == "bf16":
            phase: Phase = "always" if self.stage == 1 else "reduce"
            yield Item("pass's gradients", 2 * full, "bf16, as one pass leaves them", phase)
        if not self.is_bf16_stage_1:
            width = 4 if self.stage == 3 else self._bytes
            words = f"DeepSpeed's reduce_bucket_size, {self.bucket:,} places of {width} bytes"
            yield Item("bucket", self.bucket * width, words)
            yield Item("assembly", 4 * share, "gradients put together for the optimizer", "reduce")
        if not self.offload:
            yield Item("step", self._step_bytes * share, temporary, "step")

    @property
    def is_bf16_stage_1(self) -> bool:
        """DeepSpeed has an optimizer of its own for it: gradients without bucket, into accumulators that stay."""
        return self.precision == "bf16" and self.stage == 1

    @property
    def _step_bytes(self) -> int:
        """Of one parameter: a denominator, on CPUs a second one; at ZeRO-3 another copy of the gradient."""
        return (4 if self.device == "cuda" or self.muon else 8) + (4 if self.stage == 3 else 0)

    def _shared(self, name: str, size_bytes: int, words: str) -> Item:
        where = ", in main memory" if self.offload else ""
        divided = self._divided if self.stage > 0 else ""
        return Item(name, size_bytes, words + divided + where, offloaded=self.offload)

    def _share(self, parameters: int) -> int:
        """One rank's share; DeepSpeed fills up to an even number for each."""
        return 2 * -(-parameters // (2 * self.ranks))

    @property
    def _divided(self) -> str:
        return f", a rank's share of {self.ranks}" if self.ranks > 1 else ""


# --- activations ---


def activations(
    model: Architecture, stage: TrainedStage, resources: LearnerResources, trained_places: int | None
) -> Iterator[Item]:
    """What a pass over a full row keeps for its backward pass, and a chunk of logits."""
    places, width = resources.micro_batch_tokens, BYTES[resources.precision]
    block = block_bytes(model, resources)
    passing = model.ffn * width  # a gradient on its way through the feed-forward layer
    head = 0 if stage.lora is not None else model.embedding * width
    if resources.activation_checkpointing:
        kept, words = model.layers * model.hidden * width, f"the inputs of {model.layers} layers"
        again = places * (kept + block + passing) + head
        yield Item("recomputed layer", again, f"{words}, and {block:,} bytes a place of one", "recompute")
    else:
        kept, words = model.layers * block + passing, f"{block:,} bytes a place in each of {model.layers} layers"
    kept += norm_bytes(model.hidden, width)
    yield Item("activations", places * kept, f"{places:,} places: {words}", "forward")
    chunk = min(trained_places or places, resources.logits_chunk_tokens)
    entropy = isinstance(stage, RlStage) and stage.entropy_coef > 0
    logit = LOGIT_BYTES + (LOGIT_GRADIENT_BYTES if entropy else 0)
    words = f"{chunk:,} trained places x {model.vocabulary:,} words x {logit} bytes"
    yield Item("logits", chunk * model.vocabulary * logit, words, "forward")
    if head:
        yield Item("head's gradient", head, "until that of the embedding joins it", "forward")


def block_bytes(model: Architecture, resources: LearnerResources) -> int:
    """Kept of one place in one block: two norms, those of queries and keys, attention, four of the feed-forward."""
    width = BYTES[resources.precision]
    queries, values = model.query_width, model.kv_width
    heads = norm_bytes(queries + values, width) - (queries + values) * width if model.qk_norm else 0
    if resources.precision == "bf16" and device_of(resources) == "cuda":
        attention = (2 * queries + 2 * values) * width  # q, k, v and the output, which is o's input
    else:
        attention = 5 * queries * width  # keys and values repeated for every head, the output put together once more
    statistics = 4 * model.heads
    return 2 * norm_bytes(model.hidden, width) + heads + attention + statistics + 4 * model.ffn * width


def norm_bytes(size: int, width: int) -> int:
    """transformers' RMSNorm keeps its input in fp32, the normalised one, and its output, which the next layer reads."""
    return size * (4 + 2 * width)


# --- a rollout engine ---


def plan_engine(model: Architecture, resources: RolloutResources) -> MemoryPlan:
    """vLLM's weights and KV cache: 2 x layers x kv heads x head size values a token.

    Leaves out what vLLM itself measures at its start: activations of one scheduler step, captured graphs.
    """
    width = BYTES[resources.precision]
    cache = resources.kv_cache_mb * 2**20
    tokens = cache // (2 * model.layers * model.kv_width * width)
    items = (
        Item("weights", model.parameters * width, f"{model.parameters:,} parameters of {width} bytes"),
        Item("KV cache", cache, f"kv_cache_mb = {resources.kv_cache_mb}: room for {tokens:,} tokens"),
    )
    whose = "the rollout engine" if resources.engines == 1 else f"each of {resources.engines} rollout engines"
    return MemoryPlan(whose, items)
