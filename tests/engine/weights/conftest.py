"""Twins of everybody at a broadcast: a learner, engines that can join a group, and the group, all in this process.

Each is as strict as the real one: nobody gets on before all have joined, a transfer waits for every receiver, and one
who breaks leaves the group unusable. Tests cannot import this file, so what they need are fixtures.
"""

import asyncio
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.learner.base import TransferGroup, WeightSpec
from engine.rollout.base import EngineUnavailable, WeightReceiver
from engine.rollout.pool import EnginePool
from engine.rollout.scripted_engine import ScriptedEngine
from engine.weights.broadcast_link import BroadcastLink
from engine.weights.file_link import FileLink

WAIT_S = 0.5


def say(prompt: list[int], version: int, source: random.Random) -> list[int]:
    return [source.randrange(1, 1000), 0]


def safetensors(names: Sequence[str], mark: int) -> bytes:
    header = {name: {"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]} for n, name in enumerate(names)}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes([mark] * len(names))


class Wire:
    """Every group that was made, and what passes through it."""

    def __init__(self) -> None:
        self.members: dict[TransferGroup, set[int]] = {}
        self.complete: dict[TransferGroup, asyncio.Event] = {}
        self.receiving: dict[TransferGroup, list[asyncio.Future[bytes]]] = {}
        self.broken: set[TransferGroup] = set()
        self.changed = asyncio.Condition()

    async def meet(self, group: TransferGroup, rank: int) -> None:
        members = self.members.setdefault(group, set())
        assert rank not in members, "two members of one rank"
        members.add(rank)
        complete = self.complete.setdefault(group, asyncio.Event())
        if members == set(range(group.world)):
            complete.set()
        try:
            await asyncio.wait_for(complete.wait(), WAIT_S)
        except TimeoutError:
            raise RuntimeError(f"only {sorted(members)} of {group.world} joined") from None

    async def receive(self, group: TransferGroup) -> bytes:
        mine: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        async with self.changed:
            self.receiving.setdefault(group, []).append(mine)
            self.changed.notify_all()
        return await mine

    async def break_off(self, group: TransferGroup) -> None:
        async with self.changed:
            self.broken.add(group)
            self.changed.notify_all()

    async def send(self, group: TransferGroup, content: bytes) -> None:
        def all_there() -> bool:
            return group in self.broken or len(self.receiving.get(group, [])) == group.world - 1

        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(all_there)
        if group in self.broken:
            raise RuntimeError("connection closed by peer")
        for each in self.receiving.pop(group):
            if not each.done():
                each.set_result(content)


class JoiningEngine(ScriptedEngine):
    """A scripted engine that can join a group; ``fails_in`` names the call that fails next."""

    ranks = 1

    def __init__(self, name: str, wire: Wire, **settings: object) -> None:
        super().__init__(name, say, **settings)
        self.fails_in = ""
        self.joins = 0
        self.loads = 0
        self.group: TransferGroup | None = None
        self._wire = wire
        self._received = b""

    def receiver(self) -> WeightReceiver | None:
        return self

    async def start(self) -> None:
        self.group = None
        await super().start()

    async def _may_fail(self, call: str) -> None:
        if self.fails_in == call:
            self.fails_in = ""
            if self.group:
                await self._wire.break_off(self.group)
            raise EngineUnavailable(f"engine {self.name}: {call} failed")

    async def join(self, group: TransferGroup, first_rank: int) -> None:
        self.group = None
        await self._may_fail("join")
        self.joins += 1
        await self._alive(self._wire.meet(group, first_rank))
        self.group = group

    async def begin_update(self) -> None:
        self._accepting.clear()
        await self._alive(self._idle.wait())

    async def receive(self, specs: Sequence[WeightSpec]) -> None:
        await self._may_fail("receive")
        assert self.group
        self._received = await self._wire.receive(self.group)
        assert [spec.name for spec in specs] == list(json.loads(self._received[8:].partition(b"}}")[0] + b"}}"))

    async def finish_update(self, version: int) -> None:
        await self._may_fail("finish")
        self._weights, self._version = hashlib.sha256(self._received).hexdigest(), version
        self._accepting.set()

    async def load_weights(self, folder: Path, version: int) -> None:
        self.loads += 1
        await super().load_weights(folder, version)


class TwinLearner:
    """Has ``mark`` as its weights. Its methods run in a thread, as a learner's do."""

    def __init__(self, wire: Wire, names: Sequence[str] = ("model.norm.weight", "lm_head.weight")) -> None:
        self.mark = 1
        self.names = names
        self.exported: list[int] = []
        self.joins = 0
        self.fails_in = ""
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._group: TransferGroup | None = None

    def weight_specs(self) -> list[WeightSpec]:
        return [WeightSpec(name, "uint8", (1,)) for name in self.names]

    def export(self, folder: Path) -> None:
        if self.fails_in == "export":
            raise OSError("disk full")
        self.exported.append(self.mark)
        (folder / "model.safetensors").write_bytes(safetensors(self.names, self.mark))

    def join_transfer(self, group: TransferGroup) -> None:
        self.joins += 1
        asyncio.run_coroutine_threadsafe(self._wire.meet(group, 0), self._loop).result(10)
        self._group = group

    def broadcast(self) -> None:
        if self.fails_in == "broadcast":
            raise RuntimeError("a rank is gone")
        content = safetensors(self.names, self.mark)
        asyncio.run_coroutine_threadsafe(self._wire.send(self._group, content), self._loop).result(10)


@pytest.fixture
async def broadcasting(tmp_path: Path):
    """Builds a pool with a broadcast link: ``joining`` engines that can join a group, ``plain`` ones that cannot."""
    opened = []

    async def build(joining: int = 2, plain: int = 0, pace=None) -> SimpleNamespace:
        wire = Wire()
        settings = {"pace": pace} if pace else {}
        engines = [JoiningEngine(f"j{n}", wire, **settings) for n in range(joining)]
        others = [ScriptedEngine(f"p{n}", say) for n in range(plain)]
        pool = EnginePool([*engines, *others])
        executor = ThreadPoolExecutor(max_workers=1)

        async def learner_thread(function: Callable[[], object]) -> object:
            return await asyncio.get_running_loop().run_in_executor(executor, function)

        files = FileLink(pool, learner_thread=learner_thread, model_folder=tmp_path, fallback=tmp_path, memory=tmp_path)
        link = BroadcastLink(pool, files, learner_thread=learner_thread)
        opened.append((pool, link, executor))
        await pool.start()
        return SimpleNamespace(
            pool=pool,
            link=link,
            files=files,
            engines=engines,
            others=others,
            wire=wire,
            learner=TwinLearner(wire),
            learner_thread=learner_thread,
            another_learner=lambda *names: TwinLearner(wire, *names),
        )

    yield build
    for pool, link, executor in opened:
        await link.close()
        await pool.close()
        executor.shutdown()
