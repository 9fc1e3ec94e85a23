"""``VllmEngine`` against a stub server: its calls, their order, every failure, and no process left behind.

The real vLLM sits ``test_exam.py``; what only it can show is there.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engine.learner.base import TransferGroup, WeightSpec
from engine.rollout.base import EngineCapacity, EngineUnavailable, FinishReason, GenerateRequest
from engine.rollout.vllm_engine import SOCKET_PATH_BYTES, VllmEngine, private_folder

pytestmark = [pytest.mark.e2e]  # starts a process in every test

STUB = Path(__file__).with_name("stub_vllm.py")
ROOT = Path(__file__).parents[3]
REQUEST = GenerateRequest([1, 2, 3], max_tokens=3, temperature=0.7, stop_token_ids=(9,))


class StubEngine(VllmEngine):
    def command(self) -> list[str]:
        return [sys.executable, str(STUB), *super().command()[3:]]


@pytest.fixture
async def make(tmp_path: Path):
    engines = []

    def build(**settings) -> StubEngine:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        defaults = {"kv_cache_mb": 64, "max_model_tokens": 512, "start_timeout_s": 20}
        engine = StubEngine("e0", model_folder=tmp_path, runtime_folder=folder, **{**defaults, **settings})
        engines.append(engine)
        return engine

    yield build
    for engine in engines:
        await engine.close()


@pytest.fixture
def behave(tmp_path: Path):
    (tmp_path / "run").mkdir(exist_ok=True)
    return (tmp_path / "run" / "mode").write_text


def asked(engine: VllmEngine) -> list[tuple[str, object]]:
    return [tuple(json.loads(line)) for line in (engine.log_file.parent / "asked").read_text().splitlines()]


def pids(engine: VllmEngine) -> list[int]:
    return [int(pid) for pid in (engine.log_file.parent / "pids").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def seed_of(command: list[str]) -> str:
    return command[command.index("--seed") + 1]


@pytest.fixture
def until_gone(eventually):
    return lambda *processes: eventually(lambda: not any(alive(pid) for pid in processes))


async def test_a_start_is_warm_and_versioned(make) -> None:
    engine = make()
    await engine.start()
    (version, warm) = asked(engine)
    assert version == ("/update_weight_version", {"new_version": "0"})
    assert warm[0] == "/inference/v1/generate"
    made = await engine.generate(REQUEST)
    assert (made.ids, made.logprobs) == ([5, 6, 7], [-0.5] * 3)
    assert (made.finish, made.version) == (FinishReason.length, 0)
    assert asked(engine)[-1][1] == {
        "token_ids": [1, 2, 3],
        "sampling_params": {
            "temperature": 0.7,
            "max_tokens": 3,
            "logprobs": 0,
            "stop_token_ids": [9],
            "ignore_eos": True,
            "detokenize": False,
        },
    }


UNFINISHED = ("/update_weight_version", {"new_version": "unfinished"})


def served(version: int) -> list[tuple[str, object]]:
    """What ends an update, in this order."""
    return [
        ("/update_weight_version", {"new_version": str(version)}),
        ("/reset_prefix_cache", None),
        ("/resume", None),
    ]


async def test_f087_new_weights_in_the_right_order(make, tmp_path) -> None:
    engine = make()
    await engine.start()
    await engine.load_weights(tmp_path, 5)
    assert asked(engine)[2:] == [
        ("/pause?mode=wait", None),
        UNFINISHED,
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}),
        *served(5),
    ]
    assert (await engine.generate(REQUEST)).version == 5


async def test_f087_weights_from_a_group_in_the_right_order(make) -> None:
    engine, group = make(), TransferGroup("127.0.0.1", 4321, world=3)
    await engine.start()
    receiver = engine.receiver()
    await receiver.join(group, first_rank=2)
    assert receiver.group == group
    await receiver.begin_update()
    assert await engine.weight_version() is None
    await receiver.receive([WeightSpec("a.weight", "bfloat16", (2, 3)), WeightSpec("lm_head.weight", "float32", (5,))])
    await receiver.finish_update(6)
    init = {"host": "127.0.0.1", "port": 4321, "world": 3, "backend": "gloo", "first_rank": 2}
    update = {"names": ["a.weight", "lm_head.weight"], "dtypes": ["bfloat16", "float32"], "shapes": [[2, 3], [5]]}
    assert asked(engine)[2:] == [
        ("/init_weight_transfer_engine", {"init_info": init}),
        ("/pause?mode=wait", None),
        UNFINISHED,
        ("/start_weight_update", None),
        ("/update_weights", {"update_info": update}),
        ("/finish_weight_update", None),
        *served(6),
    ]
    assert await engine.weight_version() == 6
    assert (await engine.generate(REQUEST)).version == 6


async def test_a_new_start_is_in_no_group(make, behave) -> None:
    engine, group = make(), TransferGroup("127.0.0.1", 4321, world=2)
    await engine.start()
    await engine.receiver().join(group, first_rank=1)
    behave("refuse /init_weight_transfer_engine")
    with pytest.raises(EngineUnavailable, match="answered 500"):
        await engine.receiver().join(group, first_rank=1)
    assert engine.receiver().group is None
    behave("")
    await engine.receiver().join(group, first_rank=1)
    await engine.start()
    assert engine.receiver().group is None


async def test_weights_that_the_server_refuses_stop_the_sequence(make, behave, tmp_path) -> None:
    engine = make()
    await engine.start()
    behave("refuse /collective_rpc")
    with pytest.raises(EngineUnavailable, match="/collective_rpc answered 500"):
        await engine.load_weights(tmp_path, 5)
    assert asked(engine)[-1][0] == "/collective_rpc", "never resumed with unknown weights"
    assert await engine.weight_version() is None
    with pytest.raises(EngineUnavailable, match="unreadable answer"):
        await engine.generate(REQUEST)


async def test_a_version_that_cannot_be_read_is_our_failure(make, behave) -> None:
    engine = make()
    await engine.start()
    behave("odd")
    with pytest.raises(EngineUnavailable, match=r"unreadable answer.*weight_version"):
        await engine.weight_version()


def test_workers_find_what_they_import(make, monkeypatch) -> None:
    """From the engine's own folder, whatever the working directory; what was on the path stays there."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    environment = make()._environment()
    assert environment["PYTHONPATH"] == f"{ROOT}{os.pathsep}/somewhere"


async def test_capacity_and_load_are_read_from_the_metrics(make) -> None:
    engine = make()
    await engine.start()
    assert await engine.capacity() == EngineCapacity(65, 128, 512)
    metrics = await engine.metrics()
    expected = {"running": 2, "waiting": 1, "kv_usage": 0.25, "preemptions": 0, "generated_tokens": 50}
    assert metrics == expected


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("error", "answered 500.*EngineCore encountered"),
        ("broken", "unreadable answer"),
        ("odd", "unreadable answer"),
        ("mixed", "weight versions"),
        ("die", "disconnected"),
    ],
)
async def test_every_failure_is_our_failure(make, behave, mode, message) -> None:
    engine = make()
    await engine.start()
    behave(mode)
    with pytest.raises(EngineUnavailable, match=message):
        await engine.generate(REQUEST)


async def test_f097_an_abort_is_reported_as_one(make, behave) -> None:
    engine = make()
    await engine.start()
    behave("abort")
    assert (await engine.generate(REQUEST)).finish is FinishReason.abort


async def test_f085_no_endless_await(make, behave) -> None:
    engine = make(request_timeout_s=2)
    await engine.start()
    behave("hang")
    with pytest.raises(EngineUnavailable, match="took more than 2 s"):
        await engine.generate(REQUEST)


async def test_f085_a_server_killed_under_a_request(make, behave, until_gone, eventually) -> None:
    engine = make()
    await engine.start()
    behave("hang")
    work = asyncio.ensure_future(engine.generate(REQUEST))
    await eventually(lambda: len(asked(engine)) == 3)
    os.kill(pids(engine)[0], signal.SIGKILL)
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(work, 30)
    await until_gone(*pids(engine))
    behave("")
    await engine.start()
    assert len((await engine.generate(REQUEST)).ids) == 3


@pytest.mark.parametrize(("prompt", "more"), [(510, 3), (0, 3), (3, 0)])
async def test_f095_what_cannot_fit_is_never_sent(make, prompt, more) -> None:
    engine = make()
    await engine.start()
    before = len(asked(engine))
    with pytest.raises(ValueError, match="prompt tokens"):
        await engine.generate(GenerateRequest([1] * prompt, more, 1.0, ()))
    assert len(asked(engine)) == before


async def test_a_server_that_dies_at_its_start_is_quoted(make, behave) -> None:
    behave("no start")
    engine = make()
    with pytest.raises(EngineUnavailable, match=r"(?s)exit status 3.*ValueError: no such model"):
        await engine.start()


async def test_a_server_that_is_never_ready_is_given_up(make, behave, until_gone) -> None:
    behave("never ready")
    engine = make(start_timeout_s=3)
    with pytest.raises(EngineUnavailable, match="not ready after 3 s"):
        await engine.start()
    await until_gone(*pids(engine))


async def test_a_stale_socket_stops_no_start(make) -> None:
    engine = make()
    stale = private_folder(str(engine.log_file))
    stale.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stale / "api.sock"))
    await engine.start()
    assert stale.stat().st_mode & 0o777 == 0o700
    await engine.close()
    assert not stale.exists()


async def test_closing_leaves_no_process_however_stubborn(make) -> None:
    engine = make()
    await engine.start()
    server, helper = pids(engine)
    assert alive(server)
    assert alive(helper)
    await engine.close()
    assert not alive(server)
    assert not alive(helper)
    await engine.close()
    with pytest.raises(EngineUnavailable, match="not running"):
        await engine.generate(REQUEST)


async def test_cancelling_a_start_leaves_no_process(make, behave, until_gone, eventually) -> None:
    behave("never ready")
    engine = make()
    work = asyncio.ensure_future(engine.start())
    await eventually((engine.log_file.parent / "pids").exists)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await until_gone(*pids(engine))


CONTROLLER = """
import asyncio, os, sys, time, importlib.util
from pathlib import Path
sys.path.insert(0, sys.argv[1])
spec = importlib.util.spec_from_file_location("client", sys.argv[2])
client = importlib.util.module_from_spec(spec)
spec.loader.exec_module(client)
async def main():
    folder = Path(sys.argv[3])
    settings = {"model_folder": folder, "runtime_folder": folder, "kv_cache_mb": 1, "max_model_tokens": 512}
    engine = client.StubEngine("e0", **settings)
    await engine.start()
    if sys.argv[4] == "forked" and os.fork() == 0:
        os.close(1)
        time.sleep(600)
    print(engine._process.pid, engine._private, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["alone", "forked"])
async def test_killing_the_controller_leaves_no_process(tmp_path, how, until_gone) -> None:
    """SIGKILL, so nothing of ours runs; also when a fork of it still holds the guard's pipe."""
    command = [sys.executable, "-c", CONTROLLER, str(ROOT), __file__, str(tmp_path), how]
    controller = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, start_new_session=True)
    assert controller.stdout
    guard, private = (await asyncio.wait_for(controller.stdout.readline(), 30)).split()
    server, helper = (int(pid) for pid in (tmp_path / "pids").read_text().split())
    try:
        assert alive(server)
        assert alive(helper)
        controller.kill()
        await controller.wait()
        await until_gone(server, helper, int(guard))
        assert not os.path.exists(private), "sockets and temporary files went too"  # noqa: ASYNC240
    finally:
        os.killpg(controller.pid, signal.SIGKILL) if how == "forked" else None


@pytest.fixture
async def orphaned(make, until_gone):
    """An engine whose guard was killed, the server with it, and the process that nobody is left to kill."""
    engine = make()
    await engine.start()
    assert engine._process
    server, helper = pids(engine)
    os.kill(engine._process.pid, signal.SIGKILL)
    await until_gone(server)
    assert alive(helper)
    return engine, helper


async def test_killing_the_guard_takes_the_server_along_and_closing_the_rest(orphaned, until_gone) -> None:
    engine, helper = orphaned
    with pytest.raises(EngineUnavailable):
        await engine.generate(REQUEST)
    assert alive(helper)
    await engine.close()
    await until_gone(helper)


async def test_a_start_ends_what_a_killed_attempt_left(orphaned, make, until_gone) -> None:
    """Controller and guard killed together: nobody is left but the next attempt, on the same folder."""
    _, helper = orphaned
    again = make()
    await again.start()
    await until_gone(helper)
    assert await again.generate(REQUEST)


async def test_asking_the_guard_to_end_ends_all(make, until_gone) -> None:
    engine = make()
    await engine.start()
    assert engine._process
    os.kill(engine._process.pid, signal.SIGTERM)
    await until_gone(*pids(engine))


async def test_two_starts_have_two_seeds(make) -> None:
    engine, seeds = make(), set()
    for _ in range(2):
        await engine.start()
        seeds.add(seed_of(command_line(pids(engine)[0])))
    assert len(seeds) == 2


def test_two_engines_have_two_seeds(tmp_path) -> None:
    settings = {"model_folder": tmp_path, "runtime_folder": tmp_path, "kv_cache_mb": 1, "max_model_tokens": 9}
    assert len({seed_of(VllmEngine(name, **settings).command()) for name in "ab"}) == 2


def test_socket_paths_stay_short(tmp_path, monkeypatch) -> None:
    long = tmp_path / ("x" * 150)
    long.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    engine = VllmEngine("e", model_folder=long, runtime_folder=long, kv_cache_mb=1, max_model_tokens=9)
    path = engine.command()[engine.command().index("--uds") + 1]
    assert len(path.encode()) <= SOCKET_PATH_BYTES


async def test_a_folder_of_somebody_else_is_refused(make, tmp_path) -> None:
    engine = make()
    target = tmp_path / "elsewhere"
    target.mkdir()
    private_folder(str(engine.log_file)).symlink_to(target)
    try:
        with pytest.raises(EngineUnavailable, match="somebody else"):
            await engine.start()
    finally:
        private_folder(str(engine.log_file)).unlink()
