"""SFT's batches and data: functions of the recipe and the seed."""

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.contract.stages import PlantedErrors, SftStage
from engine.data.arithmetic import make_problems
from engine.data.render import Message
from engine.data.sft_trajectories import perform, write_script
from engine.learner.base import Sample, UpdateResult
from engine.stages.carryover import CarryOver
from engine.stages.sft import draw_batch, mean_trained, read_conversations, sft_step, write_conversations
from tests.engine.stages.bench import Bench

STAGE = SftStage(name="sft", kind="sft", steps=100, warmup_steps=10, decay_share=0.4, batch_size=4)
SOUND = PlantedErrors(
    wrong_operation=0, buggy_call=0, invalid_json=0, buggy_retry=0, give_up=0, no_tool=0, doubled_answer=0
)


def test_a_batch_is_a_function_of_its_step_and_nearly_of_one_length() -> None:
    rows = [Sample(range(length), [False] + [True] * (length - 1)) for length in range(2, 102)]
    batch = draw_batch(rows, STAGE, seed=1, step=5)
    assert batch == draw_batch(rows, STAGE, seed=1, step=5) != draw_batch(rows, STAGE, seed=1, step=6)
    lengths = [len(sample.ids) for sample in batch]
    assert len(batch) == 4
    assert max(lengths) - min(lengths) < 16
    assert mean_trained(rows) == sum(range(1, 101)) / 100


def test_fewer_rows_than_a_batch_is_no_error() -> None:
    rows = [Sample([1, 2], [False, True])] * 3
    assert len(draw_batch(rows, STAGE, seed=0, step=1)) == 3


class SkippingLearner:
    """Says of every update that its loss was not a number, and remembers how it was called."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}

    def sft_update(self, batch: Sequence[Sample], *, lr_scale: float, normaliser: float) -> UpdateResult:
        self.asked = {"lr_scale": lr_scale, "normaliser": normaliser}
        return UpdateResult({"loss": math.nan, "nll": math.nan, "skipped": 1.0})


async def test_a_skipped_update_is_told_kept_and_counted(bench: Callable[..., Bench]) -> None:
    found, learner, carried = bench(lambda _: True), SkippingLearner(), CarryOver()
    batch = [Sample([1, 2, 3], [False, True, True])]
    body = await sft_step(found.context, STAGE, learner, batch, 5, 200.0, carried)
    assert learner.asked == {"lr_scale": 0.5, "normaliser": 200.0}
    assert (body.non_finite["loss"], body.metrics["skipped"], carried.skips) == ("nan", 1.0, 1)
    assert found.context.version == 0, "the weights are those of before"
    (kept,) = found.lines("skipped/sft-step-00005.json")
    assert kept["updates"][0]["samples"][0]["ids"] == [1, 2, 3]


async def _echo(text: str) -> str:
    await asyncio.sleep(0)
    return "9"


async def test_without_planted_errors_every_trajectory_is_one_call_and_its_answer() -> None:
    rng = random.Random(0)
    for made in make_problems(rng, 20, {1: 1.0}):
        call, response, last = await perform(write_script(rng, made, SOUND), _echo)
        assert (call.role, response.role, last.texts) == (
            "assistant",
            "tool",
            ("<answer>\\boxed{9}</answer>",),
        )
        assert call.texts[0].count("<tool_call>") == 1


async def test_planted_errors_occur_as_often_as_the_recipe_says() -> None:
    rng = random.Random(0)
    scripts = [write_script(rng, made, PlantedErrors()) for made in make_problems(rng, 4000, {1: 1.0})]
    without_tool = sum("<tool_call>" not in script.calls[0] for script in scripts) / len(scripts)
    doubled = sum(script.doubled for script in scripts) / len(scripts)
    retried = sum(len(script.calls) > 1 for script in scripts) / len(scripts)
    assert abs(without_tool - 0.05) < 0.015
    assert abs(doubled - 0.08) < 0.015
    assert abs(retried - 0.95 * 0.45 * 0.85) < 0.03


def test_conversations_come_back_from_the_run_folder(tmp_path: Path) -> None:
    data = [
        (
            "1+1?\x00",
            [Message("assistant", ("a",)), Message("tool", ("b\ud800",)), Message("assistant", ("c",))],
        )
    ]
    write_conversations(tmp_path / "sft.jsonl", data)
    ((problem, messages),) = read_conversations(tmp_path / "sft.jsonl")
    assert messages[1].texts == ("b\\ud800",)
    assert messages[0] == Message("assistant", ("a",))
    assert problem == "1+1?\x00"
