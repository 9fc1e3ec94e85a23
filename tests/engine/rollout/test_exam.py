"""The exam of rollout engines: what ``RolloutEngine`` promises, asked of the twin, of servers and of a real vLLM.

SGLang and the OpenAI-compatible server are stubs with a twin behind recorded answers; the second sits the questions
that need no weights. vLLM runs a tiny random Qwen3 with tied embeddings in fp32; one server for all questions, started
again once by the question about dying.
"""

import asyncio
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from engine.learner.base import TransferGroup, WeightSpec
from engine.rollout.base import EngineUnavailable, FinishReason, GenerateRequest, Generation, RolloutEngine
from engine.rollout.openai_engine import OpenAiEngine
from engine.rollout.place import Place
from engine.rollout.pool import EnginePool
from engine.rollout.scheduling.base import Size
from engine.rollout.scripted_engine import LOGPROB, ScriptedEngine
from engine.rollout.server_client import ServerClient
from engine.rollout.sglang_engine import SglangEngine
from engine.rollout.vllm_engine import VllmEngine
from engine.weights.broadcast_link import BroadcastLink
from engine.weights.file_link import FileLink
from tests.engine.rollout.stub_servers import OpenAi, Sglang, Twin

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
VOCABULARY = 260
CONTEXT = 512
PROMPT = [5, 6, 7, 8]

VLLM = pytest.param("vllm", marks=pytest.mark.e2e)
TAKES_WEIGHTS = pytest.mark.parametrize("sat", ["scripted", "sglang", VLLM], indirect=True, scope="module")
TELLS_LOAD = TAKES_WEIGHTS


@dataclass
class Sitting:
    """An engine that takes the exam, its pool, two sets of weights, and how it is killed."""

    engine: RolloutEngine
    pool: EnginePool
    weights: tuple[Path, Path]
    kill: Callable[[], None]
    real: bool = False


class Sender:
    """A learner as far as weights go: it has those of a folder. What it sends is what it exports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.member = None
        self.exports = 0

    def _tensors(self):
        from safetensors.torch import load_file

        return load_file(self.folder / "model.safetensors")

    def export(self, folder: Path) -> None:
        self.exports += 1
        shutil.copy(self.folder / "model.safetensors", folder)

    def weight_specs(self) -> list[WeightSpec]:
        return [WeightSpec(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in self._tensors().items()]

    def join_transfer(self, group: TransferGroup) -> None:
        from engine.weights.process_group import GroupMember

        self.leave()
        self.member = GroupMember.join(group, 0)

    def broadcast(self) -> None:
        for tensor in self._tensors().values():
            self.member.send(tensor)

    def leave(self) -> None:
        if self.member:
            self.member.leave()


def ask(prompt=PROMPT, max_tokens=40, temperature=0.0, stop=(), replica=0) -> GenerateRequest:
    return GenerateRequest(list(prompt), max_tokens, temperature, stop, replica)


def babble(prompt: list[int], version: int, source: random.Random) -> list[int]:
    return [source.randrange(1, VOCABULARY) for _ in range(CONTEXT)]


def write_tiny_qwen3(folder: Path, seed: int) -> Path:
    """A model folder as the learner exports it: the tied head under both names."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen3Config(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, tie_word_embeddings=True, **shape, **heads
    )
    model = Qwen3ForCausalLM(config).float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
    assert "lm_head.weight" in tensors
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_scribble(folder: Path, seed: int) -> Path:
    """The least that is a safetensors file with an output layer: one number."""
    folder.mkdir()
    header = b'{"lm_head.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    content = len(header).to_bytes(8, "little") + header + seed.to_bytes(4, "little")
    (folder / "model.safetensors").write_bytes(content)
    return folder


def server_pid(engine: VllmEngine) -> int:
    """The API server under the engine's guard."""
    assert engine._process
    return int(Path(f"/proc/{engine._process.pid}/task/{engine._process.pid}/children").read_text().split()[0])


def tree(pid: int) -> set[int]:
    """A process and everything below it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {pid}.union(*(tree(int(child)) for child in children))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def until_gone(eventually):
    return lambda pids: eventually(lambda: not any(alive(pid) for pid in pids))


async def running(engine: RolloutEngine) -> bool:
    return (await engine.metrics())["running"] > 0


async def idle(engine: RolloutEngine) -> bool:
    return not await running(engine)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("exam")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["scripted", "sglang", VLLM, "openai"])
async def sat(request, shared_folder) -> AsyncIterator[Sitting]:
    folder = shared_folder / request.param
    folder.mkdir()
    write = write_tiny_qwen3 if request.param == "vllm" else write_scribble
    weights = (write(folder / "A", 1), write(folder / "B", 2))
    seat = {"scripted": with_twin, "vllm": with_vllm, "sglang": with_server, "openai": with_server}[request.param]
    async with seat(request.param, folder, weights) as sitting:
        await sitting.pool.start()
        yield sitting
        await sitting.pool.close()
        await sitting.engine.close()


@asynccontextmanager
async def with_twin(kind: str, folder: Path, weights: tuple[Path, Path]) -> AsyncIterator[Sitting]:
    twin = ScriptedEngine("exam", babble)
    yield Sitting(twin, EnginePool([twin]), weights, twin.die)


@asynccontextmanager
async def with_vllm(kind: str, folder: Path, weights: tuple[Path, Path]) -> AsyncIterator[Sitting]:
    engine = tiny_vllm("exam", weights[0], folder)
    everything: set[int] = set()

    class Watched(EnginePool):
        async def close(self) -> None:
            everything.update(tree(engine._process.pid))
            await super().close()

    yield Sitting(engine, Watched([engine]), weights, lambda: os.kill(server_pid(engine), signal.SIGKILL), real=True)
    assert not [pid for pid in everything if alive(pid)], "closing leaves no process"
    assert len(everything) in range(4, 9), "guard, server, core and worker were looked for"


@asynccontextmanager
async def with_server(kind: str, folder: Path, weights: tuple[Path, Path]) -> AsyncIterator[Sitting]:
    """A stub with a twin behind it; nothing runs there once nobody asks any more."""
    twin = ScriptedEngine("behind", babble)
    server: Twin = Sglang(twin) if kind == "sglang" else OpenAi(twin)
    await server.start()
    engine = remote(kind, server.url, weights[0])
    yield Sitting(engine, EnginePool([engine]), weights, server.crash)
    assert (await twin.metrics())["running"] == 0
    await server.stop()


def remote(kind: str, url: str, model: Path) -> RolloutEngine:
    if kind == "sglang":
        return SglangEngine("exam", url=url, model_folder=model, max_model_tokens=CONTEXT)
    return OpenAiEngine("exam", url=url, served_model="policy", text=OneToken(), max_model_tokens=CONTEXT)


class OneToken:
    """The least that is a tokenizer."""

    def policy_text(self, text: str) -> list[int]:
        return PROMPT

    def decode(self, ids: Sequence[int]) -> str:
        return "?"


def tiny_vllm(name: str, model: Path, runtime: Path) -> VllmEngine:
    return VllmEngine(
        name,
        model_folder=model,
        runtime_folder=runtime,
        kv_cache_mb=64,
        max_model_tokens=CONTEXT,
        max_running=64,
        start_timeout_s=240,
    )


async def test_one_log_probability_a_token(sat: Sitting) -> None:
    made = await sat.engine.generate(ask(temperature=1.0))
    assert len(made.ids) == len(made.logprobs) == 40
    assert all(-50 < logprob <= 0 for logprob in made.logprobs)
    assert all(0 <= token < VOCABULARY for token in made.ids)


async def test_a_cut_turn_says_length(sat: Sitting) -> None:
    made = await sat.engine.generate(ask(max_tokens=3))
    assert (len(made.ids), made.finish) == (3, FinishReason.length)


async def test_the_stop_token_is_part_of_the_turn(sat: Sitting) -> None:
    free = (await sat.engine.generate(ask())).ids
    stop = free[5]
    made = await sat.engine.generate(ask(stop=(stop,)))
    assert made.ids == free[: free.index(stop) + 1]
    assert made.finish is FinishReason.stop
    assert len(made.logprobs) == len(made.ids)


async def test_greedy_is_greedy_and_sampling_is_not(sat: Sitting) -> None:
    greedy = [await sat.engine.generate(ask(replica=n)) for n in range(2)]
    assert greedy[0].ids == greedy[1].ids
    sampled = await asyncio.gather(*(sat.engine.generate(ask(temperature=1.0, replica=n)) for n in range(8)))
    assert len({tuple(made.ids) for made in sampled}) == 8


@TAKES_WEIGHTS
async def test_weights_come_and_go_exactly(sat: Sitting) -> None:
    """A, B, A again: greedy text follows, and nothing of the old state (prefix cache) is left."""
    first, second = sat.weights
    long = PROMPT * 64  # two full blocks to be cached
    await sat.engine.load_weights(first, 1)
    a = await sat.engine.generate(ask(long))
    await sat.engine.load_weights(second, 2)
    b = await sat.engine.generate(ask(long))
    await sat.engine.load_weights(first, 3)
    again = await sat.engine.generate(ask(long))
    assert a.ids != b.ids
    assert again.ids == a.ids
    assert [made.version for made in (a, b, again)] == [1, 2, 3]
    assert again.logprobs == pytest.approx(a.logprobs, abs=1e-5)


@TAKES_WEIGHTS
async def test_every_turn_is_of_one_version(sat: Sitting) -> None:
    await sat.engine.load_weights(sat.weights[0], 10)
    turns = [sat.engine.generate(ask(temperature=1.0, max_tokens=200, replica=n)) for n in range(16)]
    *made, _ = await asyncio.gather(*turns, sat.engine.load_weights(sat.weights[1], 11))
    assert {one.version for one in made} <= {10, 11}
    assert (await sat.engine.generate(ask())).version == 11


@pytest_asyncio.fixture(loop_scope="module")
async def link(sat: Sitting, tmp_path) -> AsyncIterator[BroadcastLink]:
    """Weights by broadcast, where the engine can take them, else by file."""
    files = FileLink(sat.pool, learner_thread=asyncio.to_thread, model_folder=sat.weights[0], fallback=tmp_path)
    made = BroadcastLink(sat.pool, files, learner_thread=asyncio.to_thread)
    yield made
    await made.close()


async def agrees_with_learner(sat: Sitting, folder: Path) -> None:
    """fp32 on both sides leaves 1e-4 at most and 1e-5 on average (seen: 1e-6)."""
    made = await sat.engine.generate(ask(temperature=1.0, max_tokens=200))
    expected = learner_logprobs(folder, PROMPT, made.ids) if sat.real else [LOGPROB] * len(made.ids)
    gaps = [abs(ours - theirs) for ours, theirs in zip(made.logprobs, expected, strict=True)]
    assert max(gaps) <= 1e-4
    assert sum(gaps) / len(gaps) <= 1e-5


@TAKES_WEIGHTS
async def test_published_weights_come_and_go_exactly(sat: Sitting, link: BroadcastLink) -> None:
    """A, B, A again, the tied head included: what is served is what was published, and what the engine reports."""
    sender, made = Sender(sat.weights[0]), []
    for version, folder in zip((31, 32, 33), (sat.weights[0], sat.weights[1], sat.weights[0]), strict=True):
        sender.folder = folder
        await link.publish(sender, version)
        assert await sat.engine.weight_version() == version
        made.append(await sat.engine.generate(ask(PROMPT * 64)))
        await agrees_with_learner(sat, folder)
    assert [one.version for one in made] == [31, 32, 33]
    assert made[0].ids == made[2].ids != made[1].ids
    assert made[2].logprobs == pytest.approx(made[0].logprobs, abs=1e-5)
    assert sender.exports == (0 if sat.real else 3), "no file where a group can be made"
    sender.leave()


async def test_f095_what_overruns_the_context_is_refused(sat: Sitting) -> None:
    with pytest.raises(ValueError, match="over the context"):
        await sat.engine.generate(ask([5] * CONTEXT, max_tokens=1))
    fits = await sat.engine.generate(ask([5] * (CONTEXT - 1), max_tokens=1))
    assert len(fits.ids) == 1


@TELLS_LOAD
async def test_capacity_and_metrics(sat: Sitting) -> None:
    capacity = await sat.engine.capacity()
    assert capacity.max_model_tokens == CONTEXT
    assert capacity.kv_blocks * capacity.block_tokens >= CONTEXT
    before = await sat.engine.metrics()
    assert {"running", "waiting", "kv_usage", "preemptions", "generated_tokens"} <= before.keys()
    made = await asyncio.gather(*(sat.engine.generate(ask(temperature=1.0, replica=n)) for n in range(32)))
    after = await sat.engine.metrics()
    assert after["generated_tokens"] - before["generated_tokens"] == sum(len(one.ids) for one in made)


@TELLS_LOAD
async def test_cancelling_a_request_frees_its_place(sat: Sitting, eventually) -> None:
    work = asyncio.ensure_future(sat.engine.generate(ask(max_tokens=500)))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await eventually(lambda: idle(sat.engine))


# A second start of a real server takes as long as all other questions; `tests/e2e/test_engine_dies.py` is long, too.
@pytest.mark.parametrize(
    "sat",
    ["scripted", "sglang", pytest.param("vllm", marks=[pytest.mark.e2e, pytest.mark.long])],
    indirect=True,
    scope="module",
)
async def test_f085_killed_under_a_request_and_started_again(
    sat: Sitting, link: BroadcastLink, eventually, until_gone
) -> None:
    """It comes back with the weights that were published last, and takes later ones as before."""

    async def one(request: GenerateRequest, place: Place) -> Generation:
        return await place.generate(request)

    def size(request: GenerateRequest) -> Size:
        return Size("p", len(request.prompt_ids), len(request.prompt_ids) + request.max_tokens)

    sender = Sender(sat.weights[1])
    await link.publish(sender, 41)
    present = await sat.engine.generate(ask())
    work = [asyncio.ensure_future(sat.engine.generate(ask(max_tokens=500, replica=n))) for n in range(4)]
    await asyncio.sleep(0)
    if sat.real:
        await eventually(lambda: running(sat.engine))
    before = tree(server_pid(sat.engine)) if sat.real else set()
    sat.kill()
    made = await asyncio.wait_for(asyncio.gather(*work, return_exceptions=True), 30)
    assert all(isinstance(one, EngineUnavailable) for one in made)
    await until_gone(before)
    with pytest.raises(EngineUnavailable):
        await sat.engine.generate(ask())
    (again,) = await sat.pool.run([ask()], one, size=size)
    assert (sat.pool.restarts, again.version, again.ids) == (1, 41, present.ids)
    sender.folder = sat.weights[0]
    await link.publish(sender, 42)
    assert (await sat.engine.generate(ask())).ids != present.ids
    await agrees_with_learner(sat, sat.weights[0])
    sender.leave()


@pytest.mark.e2e
@pytest.mark.parametrize("sat", ["vllm"], indirect=True, scope="module")
async def test_vllm_is_an_openai_compatible_server_that_tells_ids(sat: Sitting) -> None:
    """The server of the other questions, asked in OpenAI's words over its socket."""
    engine = remote("openai", "http://engine", sat.weights[0])
    engine._client = ServerClient("exam", "http://engine/v1", socket=str(sat.engine._socket))
    await engine.start()
    assert engine.tells_logprobs
    free, made = await sat.engine.generate(ask()), await engine.generate(ask())
    assert (made.ids, made.finish) == (free.ids, FinishReason.length)
    assert made.logprobs == pytest.approx(free.logprobs, abs=1e-5)
    stop = free.ids[5]
    ended = await engine.generate(ask(stop=(stop,)))
    assert (ended.ids, ended.finish) == (free.ids[: free.ids.index(stop) + 1], FinishReason.stop)
    with pytest.raises(ValueError, match="answered 400"):
        await engine._sample(ask([5] * CONTEXT, max_tokens=2))
    await engine.close()


def learner_logprobs(folder: Path, prompt: list[int], ids: list[int]) -> list[float]:
    import torch
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    table = torch.log_softmax(logits, -1)
    return [float(table[place, token]) for place, token in enumerate(ids)]


@TAKES_WEIGHTS
async def test_after_a_push_by_file_sampler_and_learner_agree(sat: Sitting, tmp_path) -> None:
    await sat.engine.load_weights(sat.weights[0], 20)
    link = FileLink(sat.engine, learner_thread=asyncio.to_thread, model_folder=sat.weights[0], fallback=tmp_path)
    await link.publish(Sender(sat.weights[1]), 21)
    assert await sat.engine.weight_version() == 21
    await agrees_with_learner(sat, sat.weights[1])
    await link.close()


CONTROLLER = """
import asyncio, importlib.util, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
spec = importlib.util.spec_from_file_location("exam", sys.argv[2])
exam = importlib.util.module_from_spec(spec)
sys.modules["exam"] = exam
spec.loader.exec_module(exam)
async def main():
    engine = exam.tiny_vllm("killed", Path(sys.argv[3]), Path(sys.argv[4]))
    await engine.start()
    print(json.dumps(sorted(exam.tree(engine._process.pid))), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.e2e
async def test_killing_the_controller_leaves_no_vllm(shared_folder, until_gone) -> None:
    model = write_tiny_qwen3(shared_folder / "killed", 1)
    command = [sys.executable, "-c", CONTROLLER, str(ROOT), __file__, str(model), str(shared_folder)]
    controller = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert controller.stdout
    pids = set(json.loads(await asyncio.wait_for(controller.stdout.readline(), 240)))
    assert len(pids) >= 4
    assert all(alive(pid) for pid in pids)
    controller.kill()
    await controller.wait()
    await until_gone(pids)
