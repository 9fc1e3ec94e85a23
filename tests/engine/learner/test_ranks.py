"""Ranks in processes of their own: calls, errors, checkpoints in the background, and every way to an end.

The ranks here are puppets (no torch); what real ones compute is the exam's matter (``test_exam.py``).
"""

import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.contract.stages import RlStage, SftStage
from engine.learner import ranks
from engine.learner.base import CheckpointMismatch, Sample, TransferGroup, UpdateResult, WeightSpec
from engine.learner.opening import Opening
from engine.learner.rank_messages import Call, LearnerFailed, decoded, encoded
from engine.learner.ranks import RankedLearner
from engine.sink.disk import SinkFull
from tests.engine.learner.puppet import PUPPET
from tests.engine.learner.support import resources, rl_stage, sft_stage

ROOT = Path(__file__).resolve().parents[3]
GONE_S = 20.0
"""For processes to be gone: they are told by the kernel, so this is a bound for a machine that is busy."""

Start = Callable[..., RankedLearner]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Two ranks with their logs in ``tmp_path``; what a test leaves open is closed."""
    opened: list[RankedLearner] = []

    def open_ranks(opening: str = "", **options: float) -> RankedLearner:
        opened.append(RankedLearner(opening, 2, logs=tmp_path, command=PUPPET, **options))
        return opened[-1]

    yield open_ranks
    for learner in opened:
        learner.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[RankedLearner]:
    """Two ranks that survive what their tests do."""
    learner = RankedLearner("", 2, command=PUPPET)
    yield learner
    learner.close()


def gone(*pids: int) -> bool:
    """Told by the kernel, without reaping: that is the learner's to do."""
    watched = []
    for pid in pids:
        with suppress(ProcessLookupError):
            watched.append(os.pidfd_open(pid))
    left = set(watched)
    while left and (ended := wait(left, GONE_S)):
        left -= set(ended)
    for descriptor in watched:
        os.close(descriptor)
    return not left


def in_background(work: Callable[[], object]) -> "threading.Thread":
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def sample(length: int = 3) -> Sample:
    return Sample(ids=[1] * length, trained=[False] + [True] * (length - 1), logprobs=[-0.5] * length)


# --- calls ---

columns = st.integers(0, 6).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, 2**31), min_size=size, max_size=size),
        st.lists(st.booleans(), min_size=size, max_size=size),
        *[st.lists(st.floats(), min_size=size, max_size=size) | st.just([])] * 3,
        st.floats(),
    )
)


@given(columns)
def test_samples_cross_to_a_rank_to_the_bit(values: tuple[Any, ...]) -> None:
    ids, trained, logprobs, old, reference, advantage = values
    sent = Sample(ids, trained, logprobs, old, reference, advantage)
    (came,) = decoded(encoded(Call(0, "rl_update", ([sent],)))).arguments[0]
    for name in Sample.__slots__:
        ours, theirs = getattr(sent, name), getattr(came, name)
        if name == "advantage":
            ours, theirs = [ours], [theirs]
        assert list(map(repr, ours)) == list(map(repr, theirs))
        assert bool(ours) == bool(theirs)


@pytest.mark.e2e
def test_every_rank_gets_every_call_in_the_same_order(start: Start, tmp_path: Path) -> None:
    learner = start()
    group = TransferGroup("127.0.0.1", 1234, 3)
    learner.rl_update([sample()], lr_scale=0.5)
    learner.sft_update([sample()] * 2, lr_scale=1.0, normaliser=7.0)
    learner.join_transfer(group)
    learner.broadcast()
    learner.export(tmp_path)
    calls = ["rl 1 0.5 None", "rl 2 1.0 7.0", f"join {group}", "broadcast"]
    assert [(tmp_path / f"calls-{rank}").read_text().splitlines() for rank in (0, 1)] == [calls, calls]


@pytest.mark.e2e
def test_the_answer_is_rank_zeros(pair: RankedLearner) -> None:
    assert isinstance(result := pair.rl_update([], lr_scale=1.0), UpdateResult)
    assert result.metrics["rank"] == 0.0
    assert pair.weight_specs() == [WeightSpec("lm_head.weight", "float32", (2, 3))]
    values = [-1.5, math.pi, 5e-324]
    assert pair.logprobs([Sample([1, 2, 3], [False] * 3, values)]) == [values]


@pytest.mark.parametrize("stage", [sft_stage(), rl_stage(problems={"kind": "file", "path": "/data/p.jsonl"})])
def test_what_a_learner_is_opened_with_crosses_as_json(stage: SftStage | RlStage, tmp_path: Path) -> None:
    opening = Opening(policy=tmp_path, stage=stage, resources=resources(), sampler_weight=True, reference=tmp_path)
    assert Opening.model_validate_json(opening.model_dump_json()) == opening


# --- errors of a call ---


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("act", "expected", "rank"),
    [
        ("raise mismatch", CheckpointMismatch, 0),
        ("raise mismatch 1", CheckpointMismatch, 1),
        ("raise value", ValueError, 0),
        ("raise missing 0", FileNotFoundError, 0),
        ("raise full 0", SinkFull, 0),
        ("raise kind", RuntimeError, 0),
        ("raise bug 1", LearnerFailed, 1),
    ],
)
def test_an_error_keeps_its_type_and_names_its_rank(
    pair: RankedLearner, act: str, expected: type[Exception], rank: int
) -> None:
    """And the ranks go on: what all of them raise, or one after the others are through, leaves them in step."""
    with pytest.raises(expected) as caught:
        pair.load(Path(act))
    (note,) = caught.value.__notes__
    assert note.startswith(f"raised by learner rank {rank}:\nTraceback")
    assert pair.rl_update([], lr_scale=1.0).metrics["rank"] == 0.0


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("raise mismatch", "a checkpoint of A; this learner holds B"),
        ("raise missing 0", "[Errno 2] No such file or directory: '/nowhere'"),
        ("raise bug 1", "ZeroDivisionError: a bug"),
    ],
)
def test_an_error_says_what_it_would_say_in_this_process(pair: RankedLearner, act: str, message: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 (the type is the test's before)
        pair.load(Path(act))
    assert str(caught.value) == message


@pytest.mark.e2e
def test_a_rank_that_does_not_follow_an_error_is_given_up_with_all(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 would wait for rank 0 in a collective for half an hour."""
    monkeypatch.setattr(ranks, "FOLLOW_S", 0.2)
    learner = start()
    with pytest.raises(LearnerFailed, match=r"no answer of 1 within 0.2 s of an error: .*disk is full") as caught:
        learner.load(Path("raise full 0, hang - 1"))
    assert isinstance(caught.value.__cause__, SinkFull)
    assert gone(*learner.pids)


# --- checkpoints in the background ---


@pytest.mark.e2e
def test_the_next_update_runs_while_a_checkpoint_is_written(pair: RankedLearner, tmp_path: Path) -> None:
    saving = pair.save(tmp_path / "c")
    with ThreadPoolExecutor(max_workers=1) as elsewhere:
        waiting = elsewhere.submit(saving.wait)
        assert pair.rl_update([], lr_scale=1.0).metrics["rank"] == 0.0
        assert not waiting.done()
        (tmp_path / "c.go").touch()
        waiting.result()
    saving.wait()


@pytest.mark.e2e
def test_a_disk_that_fills_behind_the_learner_is_told_by_wait(pair: RankedLearner, tmp_path: Path) -> None:
    saving = pair.save(tmp_path / "c", model_folder=tmp_path / "m")
    (tmp_path / "c.full").touch()
    (tmp_path / "c.go").touch()
    for _ in range(2):
        with pytest.raises(SinkFull, match="the disk is full"):
            saving.wait()
    assert pair.rl_update([], lr_scale=1.0).metrics["rank"] == 0.0


@pytest.mark.e2e
def test_a_rank_that_dies_while_it_writes_is_told_by_wait(start: Start, tmp_path: Path) -> None:
    learner = start()
    saving = learner.save(tmp_path / "c")
    os.kill(learner.pids[0], signal.SIGKILL)
    with pytest.raises(LearnerFailed, match="learner rank 0 was ended by SIGKILL"):
        saving.wait()


@pytest.mark.e2e
def test_a_checkpoint_that_was_written_counts_though_a_rank_died_since(start: Start, tmp_path: Path) -> None:
    learner = start()
    (tmp_path / "c.go").touch()
    saving = learner.save(tmp_path / "c")
    saving.wait()
    os.kill(learner.pids[0], signal.SIGKILL)
    with pytest.raises(LearnerFailed):
        learner.rl_update([], lr_scale=1.0)
    saving.wait()


# --- ends ---


@pytest.mark.e2e
def test_close_leaves_no_process_and_may_be_called_again(start: Start) -> None:
    learner = start()
    learner.close()
    learner.close()
    assert gone(*learner.pids)


@pytest.mark.e2e
def test_a_killed_rank_ends_the_call_and_all_ranks_at_once(start: Start) -> None:
    """Rank 0 hangs as in a collective. The reason names the rank that was killed, and every later call says it too."""
    learner = start()
    victim = in_background(lambda: os.kill(learner.pids[1], signal.SIGKILL))
    for call in (lambda: learner.load(Path("hang - 0")), lambda: learner.rl_update([], lr_scale=1.0)):
        with pytest.raises(LearnerFailed, match="learner rank 1 was ended by SIGKILL"):
            call()
        assert not any(map(psutil.pid_exists, learner.pids))
    victim.join()
    learner.close()


@pytest.mark.e2e
def test_a_rank_that_ends_itself_leaves_its_last_words(start: Start) -> None:
    learner = start()
    with pytest.raises(LearnerFailed, match=r"(?s)rank 1 ended with exit status 3.*learner-1.log.*something to say"):
        learner.load(Path("exit 3 1"))
    assert gone(*learner.pids)


@pytest.mark.e2e
def test_what_a_rank_started_goes_with_it(start: Start) -> None:
    """A compiler of DeepSpeed's pieces, say, whose rank is killed."""
    learner = start()
    learner.load(Path("spawn child-0 0, spawn child-1 1"))
    children = [int((learner._scratch / f"child-{rank}").read_text()) for rank in (0, 1)]
    with pytest.raises(LearnerFailed):
        learner.load(Path("die SIGKILL 1"))
    assert gone(*learner.pids, *children)


CONTROLLER = """
import os, sys, time
from pathlib import Path
from engine.learner.ranks import RankedLearner
from tests.engine.learner.puppet import PUPPET
learner = RankedLearner("", 2, command=PUPPET)
learner.load(Path("spawn child 0"))
heir = os.fork()  # holds the connections too, as a process of multiprocessing's would
if not heir:
    os.close(1)
    time.sleep(1000)
print(heir, (learner._scratch / "child").read_text(), *learner.pids, learner._scratch, flush=True)
learner.load(Path("hang -"))
"""


@pytest.mark.e2e
@pytest.mark.parametrize("heir_lives", [False, True], ids=["alone", "its fork lives on"])
def test_ranks_end_when_their_controller_is_killed(heir_lives: bool) -> None:
    """In the middle of a call, and with them go what they started and the folder they met in."""
    controller = subprocess.Popen([sys.executable, "-c", CONTROLLER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with controller:
        assert controller.stdout
        *numbers, scratch = controller.stdout.readline().split()
        heir, *pids = map(int, numbers)
        if not heir_lives:
            os.kill(heir, signal.SIGKILL)
        controller.kill()
    try:
        assert gone(*pids)
        assert not Path(scratch).exists()
    finally:
        if heir_lives:
            os.kill(heir, signal.SIGKILL)


# --- beginnings ---


@pytest.mark.e2e
def test_a_rank_that_cannot_open_says_why_and_leaves_none(start: Start, tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(FileNotFoundError, match="/nowhere"):
        start("raise missing")
    with pytest.raises(LearnerFailed, match="rank 0 ended with exit status 4"):
        start("exit 4 0, hang - 1")
    assert {child.pid for child in psutil.Process().children()} <= before


@pytest.mark.e2e
def test_ranks_that_take_too_long_to_open_are_ended_and_named(start: Start) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(LearnerFailed, match=r"(?s)ranks not open within 0\.1 s: 0, 1, last lines of .*0\.log"):
        start("hang -", start_s=0.1)
    assert {child.pid for child in psutil.Process().children()} <= before
