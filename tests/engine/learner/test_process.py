"""The learner as a guest in the controller's process: threads, successors, output, files, checkpoints, full disks."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engine.learner.base import CheckpointMismatch
from engine.learner.deepspeed_learner import DeepSpeedLearner
from tests.engine.learner.support import Open, exported, make_folder, resources, rl_stage, samples, sft_stage

ROOT = Path(__file__).resolve().parents[3]

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


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_a_fresh_process_goes_on_to_the_bit(opening: Open, kind: str, tmp_path: Path) -> None:
    """Muon at ZeRO 0 and AdamW at ZeRO 1: two steps, save, two more; the same two elsewhere after a load."""
    learner = getattr(opening, kind)(85)
    for number in range(2):
        step(learner, kind, number)
    learner.save(tmp_path / "checkpoint")
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
    learner.save(tmp_path / "c")
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
    wider.close()
    learner = opening.rl()
    before = exported(learner, tmp_path / "before")
    with pytest.raises(CheckpointMismatch, match=r"hidden size 64.*hidden size 32"):
        learner.load(tmp_path / "c")
    assert exported(learner, tmp_path / "after") == before


def test_a_checkpoint_of_another_stage_kind_is_refused(opening: Open, tmp_path: Path) -> None:
    opening.sft().save(tmp_path / "c")
    with pytest.raises(CheckpointMismatch, match="of an SFT learner"):
        opening.rl().load(tmp_path / "c")


def test_a_cut_checkpoint_is_refused(opening: Open, tmp_path: Path) -> None:
    learner = opening.rl()
    learner.save(tmp_path / "c")
    for path in (tmp_path / "c").rglob("*.pt"):
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(CheckpointMismatch, match="is damaged"):
        learner.load(tmp_path / "c")


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
def test_a_full_disk_leaves_the_older_checkpoint(opening: Open, kind: str, tmp_path: Path) -> None:
    learner = getattr(opening, kind)()
    step(learner, kind, 0)
    learner.save(tmp_path / "c")
    good = exported(learner, tmp_path / "good")
    step(learner, kind, 1)
    with full_disk(), pytest.raises(OSError, match=r"."):
        learner.save(tmp_path / "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "good"]
    learner.load(tmp_path / "c")
    assert exported(learner, tmp_path / "again") == good


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
    assert (tmp_path / "out" / "config.json").read_bytes() == (opening.folder / "config.json").read_bytes()
    (sample,) = samples(1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    logits = model(input_ids=torch.tensor([list(sample.ids)])).logits[0]
    theirs = torch.log_softmax(logits, -1)[torch.arange(len(sample.ids) - 1), list(sample.ids)[1:]]
    assert learner.logprobs([sample])[0][1:] == pytest.approx(theirs.tolist(), abs=1e-5)


def test_stages_follow_one_another_on_a_worker_thread(
    model_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """SFT, then RL twice, each from the export of the one before; stdout, signals, variables stay the host's."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    variables = dict(os.environ)

    def stages() -> list[float]:
        norms, folder = [], model_folder
        for place, kind in enumerate(["sft", "rl", "rl"]):
            if kind == "sft":
                learner = DeepSpeedLearner.for_sft(folder, sft_stage(), resources())
            else:
                learner = DeepSpeedLearner.for_rl(folder, rl_stage(), resources(85))
            batch = samples(7, seed=place, rl=kind == "rl")
            update = learner.sft_update if kind == "sft" else learner.rl_update
            norms += [update(batch, lr_scale=1.0).metrics["grad_norm"] for _ in range(2)]
            folder = tmp_path / str(place)
            learner.export(folder)
            learner.close()
            learner.close()
        return norms

    with ThreadPoolExecutor(max_workers=1) as executor:
        norms = executor.submit(stages).result()
    assert min(norms) > 0.01
    assert capfd.readouterr().out == ""
    assert {number: signal.getsignal(number) for number in handlers} == handlers
    assert "LOCAL_RANK" not in os.environ
    assert dict(os.environ) == variables
