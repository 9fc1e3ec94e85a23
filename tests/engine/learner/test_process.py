"""The learner as a guest in the controller's process: threads, successors, output, files, checkpoints, full disks."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engine.learner import deepspeed_learner, distributed
from engine.learner.base import CheckpointMismatch, TransferGroup, WeightSpec
from engine.learner.checkpoint import ModelCard
from engine.learner.deepspeed_learner import DeepSpeedLearner
from engine.learner.state import LearnerState, gather_state
from engine.weights.process_group import GroupMember
from tests.engine.learner.support import (
    ROOT,
    Open,
    digest,
    exported,
    make_folder,
    resources,
    rl_stage,
    samples,
    sft_stage,
)

pytestmark = pytest.mark.e2e

RESUME = """
import sys
from pathlib import Path
from engine.learner.deepspeed_learner import DeepSpeedLearner
from tests.engine.learner.support import exported, resources, rl_stage, samples, sft_stage
kind, model, checkpoint, out = sys.argv[1], *map(Path, sys.argv[2:])
if kind == "sft":
    learner = DeepSpeedLearner.for_sft(model, sft_stage(), resources(85))
else:
    learner = DeepSpeedLearner.for_rl(model, rl_stage(), resources(85))
learner.load(checkpoint)
for step in (2, 3):
    batch = samples(7, seed=step, rl=kind == "rl")
    (learner.sft_update if kind == "sft" else learner.rl_update)(batch, lr_scale=0.5 + step)
print("digest", exported(learner, out), learner.updates)
"""


def step(learner: DeepSpeedLearner, kind: str, number: int) -> None:
    batch = samples(7, seed=number, rl=kind == "rl")
    (learner.sft_update if kind == "sft" else learner.rl_update)(batch, lr_scale=0.5 + number)


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_fresh_process_goes_on_to_the_bit(opening: Open, kind: str, tmp_path: Path) -> None:
    """Muon at ZeRO 0 and AdamW at ZeRO 1: two steps, save, two more; the same two elsewhere after a load."""
    learner = getattr(opening, kind)(85)
    for number in range(2):
        step(learner, kind, number)
    learner.save(tmp_path / "checkpoint").wait()
    at_save = exported(learner, tmp_path / "at_save")
    for number in (2, 3):
        step(learner, kind, number)
    here = exported(learner, tmp_path / "here")
    assert here != at_save
    arguments = [kind, opening.folder, tmp_path / "checkpoint", tmp_path / "there"]
    done = subprocess.run(
        [sys.executable, "-c", RESUME, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"digest {here} 4\n"


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_loading_goes_back(opening: Open, kind: str, tmp_path: Path) -> None:
    learner = getattr(opening, kind)()
    step(learner, kind, 0)
    learner.save(tmp_path / "c").wait()
    digests = []
    for _ in range(2):
        step(learner, kind, 1)
        digests.append(exported(learner, tmp_path / "m"))
        learner.load(tmp_path / "c")
    assert digests[0] == digests[1]
    assert learner.updates == 1


def test_a_checkpoint_of_another_model_is_refused(opening: Open, tmp_path: Path) -> None:
    wider = DeepSpeedLearner.for_rl(make_folder(tmp_path / "wide", hidden_size=64), rl_stage(), resources())
    wider.save(tmp_path / "c")
    wider.close()  # which waits
    learner = opening.rl()
    before = exported(learner, tmp_path / "before")
    with pytest.raises(CheckpointMismatch, match=r"hidden size 64.*hidden size 32"):
        learner.load(tmp_path / "c")
    assert exported(learner, tmp_path / "after") == before


def test_a_checkpoint_of_another_optimizer_is_refused(opening: Open, tmp_path: Path) -> None:
    muon = opening.sft()
    step(muon, "sft", 0)
    muon.save(tmp_path / "c").wait()
    learner = opening.rl()
    before = exported(learner, tmp_path / "before")
    with pytest.raises(CheckpointMismatch, match="with muon"):
        learner.load(tmp_path / "c")
    assert exported(learner, tmp_path / "after") == before


def test_a_cut_checkpoint_is_refused(opening: Open, tmp_path: Path) -> None:
    learner = opening.rl()
    learner.save(tmp_path / "c").wait()
    for path in (tmp_path / "c").glob("*.safetensors"):
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointMismatch, match="is damaged"):
        learner.load(tmp_path / "c")


def test_what_is_saved_is_the_state_at_the_call(opening: Open, tmp_path: Path) -> None:
    """Writing goes on behind the next step, for the checkpoint and for the model that rollout engines start from."""
    learner = opening.rl()
    step(learner, "rl", 0)
    now = exported(learner, tmp_path / "now")
    saving = learner.save(tmp_path / "c", model_folder=tmp_path / "model")
    step(learner, "rl", 1)
    saving.wait()
    saving.wait()
    assert digest(tmp_path / "model") == now
    assert (tmp_path / "model" / "config.json").read_bytes() == (tmp_path / "now" / "config.json").read_bytes()
    learner.load(tmp_path / "c")
    assert exported(learner, tmp_path / "again") == now


def test_one_checkpoint_is_written_at_a_time(opening: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second save copies nothing before the first is written: two copies would double the memory."""
    learner = opening.rl()
    written: list[str] = []
    written_at_copy: list[list[str]] = []

    def write_slowly(folder: Path, state: LearnerState, card: ModelCard) -> None:
        time.sleep(0.2)
        written.append(folder.name)

    def copy(engine: object, module: torch.nn.Module, *, updates: int) -> LearnerState | None:
        written_at_copy.append(list(written))
        return gather_state(engine, module, updates=updates)

    monkeypatch.setattr(deepspeed_learner, "write_state", write_slowly)
    monkeypatch.setattr(deepspeed_learner, "gather_state", copy)
    learner.save(tmp_path / "first")
    learner.save(tmp_path / "second").wait()
    assert written_at_copy == [[], ["first"]]
    assert written == ["first", "second"]


@contextmanager
def full_disk(limit: int = 20_000) -> Iterator[None]:
    """Files of this process cannot grow beyond ``limit`` bytes: writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_full_disk_is_told_by_the_saving_and_the_learner_goes_on(opening: Open, kind: str, tmp_path: Path) -> None:
    learner, undisturbed = getattr(opening, kind)(), getattr(opening, kind)()
    for each in (learner, undisturbed):
        step(each, kind, 0)
    with full_disk():
        saving = learner.save(tmp_path / "c")
        with pytest.raises(OSError, match="c"):
            saving.wait()
    for each in (learner, undisturbed):
        step(each, kind, 1)
    learner.save(tmp_path / "d").wait()
    assert exported(learner, tmp_path / "ours") == exported(undisturbed, tmp_path / "theirs")


def test_a_full_disk_leaves_the_older_export(opening: Open, tmp_path: Path) -> None:
    learner = opening.rl()
    exported(learner, tmp_path)
    old = (tmp_path / "model.safetensors").read_bytes()
    step(learner, "rl", 0)
    with full_disk(), pytest.raises(OSError, match=r"."):
        learner.export(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_export_is_a_model_folder_with_its_tied_head(opening: Open, tmp_path: Path) -> None:
    learner = opening.rl()
    step(learner, "rl", 0)
    learner.export(tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert not torch.equal(weights["lm_head.weight"], load_file(opening.folder / "model.safetensors")["lm_head.weight"])
    (sample,) = samples(1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    logits = model(input_ids=torch.tensor([list(sample.ids)])).logits[0]
    theirs = torch.log_softmax(logits, -1)[torch.arange(len(sample.ids) - 1), list(sample.ids)[1:]]
    assert learner.logprobs([sample])[0][1:] == pytest.approx(theirs.tolist(), abs=1e-5)


def test_engines_are_sent_every_weight_in_the_order_of_the_specs(opening: Open) -> None:
    """Over a real process group; a thread stands for the engine's worker."""
    learner = opening.rl()
    step(learner, "rl", 0)
    with pytest.raises(RuntimeError, match="broadcast before join_transfer"):
        learner.broadcast()
    group = TransferGroup(host="127.0.0.1", port=free_port(), world=2)
    with ThreadPoolExecutor(max_workers=1) as executor:
        receiving = executor.submit(receive_all, group, learner.weight_specs())
        learner.join_transfer(group)
        learner.broadcast()
        received = receiving.result(timeout=60)
    sent = dict(learner._model.named_weights())
    assert list(received) == list(sent) == [spec.name for spec in learner.weight_specs()]
    assert "lm_head.weight" in received
    assert all(torch.equal(received[name], sent[name]) for name in sent)


def receive_all(group: TransferGroup, specs: Sequence[WeightSpec]) -> dict[str, torch.Tensor]:
    member = GroupMember.join(group, 1)
    weights = {spec.name: member.receive(getattr(torch, spec.dtype), spec.shape) for spec in specs}
    member.leave()
    return weights


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_a_rank_that_is_none_of_them_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is none of 2 ranks"):
        distributed.join(2, 2, "file:///nowhere")


def test_a_gpu_that_is_not_there_is_refused(opening: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"learner\.device is cuda, but torch finds no GPU"):
        opening.rl(on={"device": "cuda"})


def test_stages_follow_one_another_on_a_worker_thread(
    model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SFT, RL at ZeRO 1 and 3 and in bf16, each from the one before; all else stays the host's."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    variables, linear = dict(os.environ), torch.nn.functional.linear

    def stages() -> list[float]:
        norms, folder = [], model_folder
        learner = DeepSpeedLearner.for_sft(folder, sft_stage(), resources())
        for place, on in enumerate([{"zero_stage": 1}, {"zero_stage": 3}, {"precision": "bf16"}, {}]):
            update = learner.rl_update if place else learner.sft_update
            batch = samples(7, seed=place, rl=place > 0)
            norms += [update(batch, lr_scale=1.0).metrics["grad_norm"] for _ in range(2)]
            folder = tmp_path / str(place)
            learner.export(folder)
            learner.close()
            learner.close()
            learner = DeepSpeedLearner.for_rl(folder, rl_stage(), resources(85, **on))
        learner.close()
        return norms

    with ThreadPoolExecutor(max_workers=1) as executor:
        norms = executor.submit(stages).result()
    assert min(norms) > 0.01
    assert capfd.readouterr().out == ""
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert "LOCAL_RANK" not in os.environ
    assert dict(os.environ) == variables
    assert torch.nn.functional.linear is linear
