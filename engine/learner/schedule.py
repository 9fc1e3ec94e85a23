"""The learning rate's factor at each step of a stage: warm-up, constant, decay.

A function of the step alone, so that a resumed stage needs no state for it. Leaves out the base rates (``optim.py``).
"""

import math

from engine.contract.stages import TrainedStage


def rate_factor(stage: TrainedStage, step: int) -> float:
    """What the base rates are multiplied with at ``step``, which counts from 1: over 0, at most 1.

    Warm-up rises in equal parts and reaches 1 at step ``warmup_steps``. The decay takes the last ``decay_share`` of
    the steps and would reach 0 one step after the last, so that no step is wasted. Where both overlap, they multiply.
    Raises ``ValueError`` for a step that is none of the stage's.
    """
    if not 1 <= step <= stage.steps:
        raise ValueError(f"step {step} is none of the {stage.steps} steps of stage {stage.name}")
    return _warmup(stage, step) * _decay(stage, step)


def _warmup(stage: TrainedStage, step: int) -> float:
    return min(1.0, step / stage.warmup_steps) if stage.warmup_steps else 1.0


def _decay(stage: TrainedStage, step: int) -> float:
    length = stage.decay_share * stage.steps
    left = stage.steps + 1 - step
    if left >= length:
        return 1.0
    return 0.5 - 0.5 * math.cos(math.pi * left / length) if stage.schedule == "cosine" else left / length
