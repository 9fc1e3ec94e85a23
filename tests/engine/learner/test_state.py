"""A learner's state leaves one set of processes and goes on in another, on real DeepSpeed engines.

Two lives: processes that train, store their states and go on; and fresh ones that go on from the stored states, in the
same shape and in others. Each life is one process for one rank and two for two ranks, forked from one that has
imported DeepSpeed already.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.learner.state import LearnerState, read_state
from tests.engine.learner.state_worker import CARD, Setup, Task, Trace, life

pytestmark = pytest.mark.e2e

ONE = (
    Setup(0, "Muon"),
    # DeepSpeed's CPU Adam keeps a running product that first differs from a power after 13 steps.
    Setup(2, offload=True, before=20),
    Setup(1, before=0),
)
TWO = (Setup(0), Setup(1), Setup(2), Setup(3), Setup(1, precision="bf16"), Setup(3, precision="bf16"))
SAVED = {setup: 1 for setup in ONE} | {setup: 2 for setup in TWO}

MOVES = (
    (TWO[1], 1, Setup(3)),
    (TWO[3], 1, Setup(0)),
    (TWO[4], 1, Setup(3, precision="bf16")),
    (ONE[1], 2, Setup(3, before=20)),
    (ONE[2], 2, Setup(2, before=0)),
)
"""A stored state, the number of ranks that go on from it, and how."""

REFUSED = {"optimizer": (Setup(0), ONE[0]), "parameters": (Setup(0, inner=6), ONE[1])}
SHARED = (("shared", True),)
OWN = (("shared", False),)


class Lives:
    """Runs the processes, and reads what they stored."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["deepspeed", "tests.engine.learner.state_worker"])

    def live(self, name: str, tasks: dict[int, list[Task]]) -> None:
        processes = [
            self._context.Process(target=life, args=(rank, world, self.root, f"{name}-{world}", todo))
            for world, todo in tasks.items()
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * len(processes)

    def folder(self, setup: Setup) -> Path:
        return self.root / str(setup)

    def stored(self, setup: Setup) -> LearnerState:
        return read_state(self.folder(setup), CARD)

    def result(self, name: str, rank: int = 0) -> Any:
        return torch.load(self.root / f"{name}-{rank}", weights_only=False)

    def first_life(self) -> None:
        tasks: dict[int, list[Task]] = {1: [], 2: []}
        for setup, world in SAVED.items():
            tasks[world].append(Task(f"saved-{setup}", "save", setup, self.folder(setup)))
        self.live("first", tasks)

    def second_life(self) -> None:
        tasks: dict[int, list[Task]] = {1: [], 2: []}
        for setup, world in SAVED.items():
            tasks[world].append(Task(f"own-{setup}", "resume", setup, self.folder(setup), OWN))
        for setup, world, other in MOVES:
            here, name = self.folder(setup), f"{setup}-{other}"
            tasks[SAVED[setup]].append(Task(f"unmoved-{name}", "resume", setup, here, SHARED))
            tasks[world].append(Task(f"moved-{name}", "resume", other, here, SHARED))
        for what, (other, setup) in REFUSED.items():
            tasks[1].append(Task(f"refused-{what}", "refuse", other, self.folder(setup)))
        self.live("second", tasks)


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    found = Lives(tmp_path_factory.mktemp("states"))
    found.first_life()
    found.second_life()
    return found


def assert_equal_to_the_bit(one: Trace, other: Trace) -> None:
    assert [loss for loss, _ in one] == [loss for loss, _ in other]
    for (_, ours), (_, theirs) in zip(one, other, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("setup", SAVED, ids=str)
def test_a_fresh_process_goes_on_equal_to_the_bit(lives: Lives, setup: Setup) -> None:
    for rank in range(SAVED[setup]):
        went_on, _ = lives.result(f"saved-{setup}", rank)
        updates, _, resumed = lives.result(f"own-{setup}", rank)
        assert updates == setup.before
        assert_equal_to_the_bit(resumed, went_on)


@pytest.mark.parametrize("setup", SAVED, ids=str)
def test_an_engine_that_has_gone_on_is_taken_back_to_its_state(lives: Lives, setup: Setup) -> None:
    for rank in range(SAVED[setup]):
        went_on, again = lives.result(f"saved-{setup}", rank)
        assert_equal_to_the_bit(again, went_on)


@pytest.mark.parametrize(("setup", "world", "other"), MOVES, ids=str)
def test_on_other_ranks_and_stages_the_restored_tensors_are_equal_to_the_bit(
    lives: Lives, setup: Setup, world: int, other: Setup
) -> None:
    stored = lives.stored(setup)
    _, restored, _ = lives.result(f"moved-{setup}-{other}")
    names = {name for name in stored.tensors if not name.startswith("rng/")}
    assert names == {name for name in restored.tensors if not name.startswith("rng/")}
    assert all(torch.equal(stored.tensors[name], restored.tensors[name]) for name in names)
    assert stored.numbers == {**restored.numbers, "ranks": SAVED[setup]}


@pytest.mark.parametrize(("setup", "world", "other"), MOVES, ids=str)
def test_on_other_ranks_and_stages_training_goes_on_equal_to_rounding(
    lives: Lives, setup: Setup, world: int, other: Setup
) -> None:
    _, _, unmoved = lives.result(f"unmoved-{setup}-{other}")
    _, _, moved = lives.result(f"moved-{setup}-{other}")
    coarse = {"rtol": 2**-7, "atol": 1e-2} if setup.precision == "bf16" else {"rtol": 1e-5, "atol": 1e-6}
    for (loss, weights), (their_loss, their_weights) in zip(unmoved, moved, strict=True):
        assert loss == pytest.approx(their_loss, rel=coarse["rtol"])
        torch.testing.assert_close(weights, their_weights, **coarse)


def test_the_state_names_what_is_trained_and_nothing_else(lives: Lives) -> None:
    trained = {"embed.weight", "up.weight", "up.bias", "down.weight", "norm.weight", "norm.bias"}
    kinds = ("master", "adam/exp_avg", "adam/exp_avg_sq")
    expected = {f"{kind}/{name}" for kind in kinds for name in trained} | {"rng/cpu/0", "rng/cpu/1"}
    state = lives.stored(TWO[3])
    assert set(state.tensors) == expected
    assert state.numbers == {"updates": 3, "ranks": 2, "step": dict.fromkeys(trained, 3)}


def test_muon_keeps_one_tensor_a_matrix_and_adam_two_for_the_rest(lives: Lives) -> None:
    names = set(lives.stored(ONE[0]).tensors)
    assert {name for name in names if name.startswith("muon/")} == {
        "muon/momentum_buffer/up.weight",
        "muon/momentum_buffer/down.weight",
    }
    assert {name for name in names if name.startswith("adam/exp_avg/")} == {
        f"adam/exp_avg/{name}" for name in ("embed.weight", "up.bias", "norm.weight", "norm.bias")
    }


def test_before_the_first_step_there_are_only_masters_and_generators(lives: Lives) -> None:
    state = lives.stored(ONE[2])
    assert {name.split("/")[0] for name in state.tensors} == {"master", "rng"}
    assert state.numbers["step"] == {}


def test_masters_are_kept_in_fp32_under_a_bf16_pass(lives: Lives) -> None:
    state = lives.stored(TWO[4])
    masters = [value for name, value in state.tensors.items() if name.startswith("master/")]
    assert {value.dtype for value in masters} == {torch.float32}
    assert any(not torch.equal(value, value.bfloat16().float()) for value in masters)


def test_another_optimizer_is_refused_and_nothing_is_changed(lives: Lives) -> None:
    said, same = lives.result("refused-optimizer")
    assert said == "the checkpoint trains up.weight with muon, this learner with adam"
    assert same


def test_other_parameters_are_refused_and_both_shapes_are_named(lives: Lives) -> None:
    said, same = lives.result("refused-parameters")
    assert "3 differ: master/down.weight has shape (7, 5) there and (7, 6) here" in said
    assert same
