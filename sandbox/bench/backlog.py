"""A long queue whose node dies on the way: all calls are queued at once, and a node works them off.

The queue is a Valkey of our own, which outlives the node: the node is killed (SIGKILL) when a third and when two thirds
are answered, and started again each time. Counted are answers by the id that came back (none missing, none twice), the
CPU of the nodes with all of their programs (read just before each kill), and the node's resident memory early and late
in its last life.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox.bench.arms import LIMITS
from sandbox.bench.cpu import tree_cpu_s
from sandbox.bench.own_valkey import own_valkey
from sandbox.bench.programs import ANSWERS, PROGRAMS, mixed
from sandbox.client import SandboxClient, sandbox_at
from sandbox.contract import ExecRequest, ExecResult, SandboxUnavailable
from sandbox.starting import PYTHON_VARIABLE

_SEED = 4
_KILLED_AT = (1 / 3, 2 / 3)
_WARM_AT = 0.7
"""Share of all calls at which the memory of the last node is looked at first: it has served a tenth of its own."""

Tell = Callable[[int], object]


async def measure(calls: int, slots: int, python: Path, tell: Tell = lambda _: None) -> dict[str, Any]:
    """Queue `calls` of the mix and see them answered; `tell` hears how many are. Raises `NoValkey`."""
    tally = _Tally(calls, tell)
    async with own_valkey() as url, _Node(url, slots, python) as node, sandbox_at(url) as client:
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for request in tally.requests:
                group.create_task(_answered(client, request, tally))
            for share in _KILLED_AT:
                await tally.reached(share)
                await node.kill()
                await node.start()
            await tally.reached(_WARM_AT)
            early_mb = node.resident_mb()
        seconds = asyncio.get_running_loop().time() - began
        late_mb = node.resident_mb()
        await node.kill()
    return {
        "calls": calls,
        "seed": _SEED,
        "node_killed": len(_KILLED_AT),
        "lost": tally.lost,
        "doubled": tally.doubled,
        "wrong": tally.wrong,
        "failures": dict(tally.failures),
        "seconds": seconds,
        "calls_per_s": calls / seconds,
        "core_s": node.core_s,
        # The node's three starts weigh too much in a shorter queue to tell of a long one.
        "core_s_at_45000": node.core_s * 45_000 / calls if calls >= 45_000 else None,
        "node_resident_mb": {"early": early_mb, "late": late_mb, "growth": late_mb / early_mb - 1},
    }


async def _answered(client: SandboxClient, request: ExecRequest, tally: "_Tally") -> None:
    try:
        tally.answered(await client.execute(request))
    except SandboxUnavailable as error:
        tally.failed(error)


class _Tally:
    """What came of the calls, by the ids that came back."""

    def __init__(self, calls: int, tell: Tell) -> None:
        names = {f"{number}": name for number, name in enumerate(mixed(calls, _SEED))}
        self.requests = [ExecRequest(id=id_, code=PROGRAMS[name], limits=LIMITS) for id_, name in names.items()]
        self.wrong = 0
        self.failures: Counter[str] = Counter()
        self.right = {id_: ANSWERS[name] for id_, name in names.items()}
        self._answers: Counter[str] = Counter()
        self._tell = tell
        self._wake = asyncio.Event()

    def answered(self, result: ExecResult) -> None:
        self._answers[result.id] += 1
        self.wrong += result.stdout != self.right.get(result.id)
        self._changed()

    def failed(self, error: SandboxUnavailable) -> None:
        """The sandbox gave the call up: it counts as lost."""
        self.failures[str(error)] += 1
        self._changed()

    def _changed(self) -> None:
        self._tell(self._over)
        self._wake.set()

    @property
    def _over(self) -> int:
        return self._answers.total() + self.failures.total()

    async def reached(self, share: float) -> None:
        """Returns when this share of the calls is over."""
        while self._over < share * len(self.requests):
            self._wake.clear()
            await self._wake.wait()

    @property
    def lost(self) -> int:
        return len(self.right.keys() - self._answers.keys())

    @property
    def doubled(self) -> int:
        return sum(count - 1 for count in self._answers.values())


class _Node:
    """`python -m sandbox node` as a process that can be killed and started again; adds up what its lives cost."""

    def __init__(self, url: str, slots: int, python: Path) -> None:
        self.core_s = 0.0
        self._command = (sys.executable, "-m", "sandbox", "node", "--valkey", url, "--slots", str(slots))
        self._environment = {**os.environ, PYTHON_VARIABLE: str(python)}
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "_Node":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process:
            await self.kill()

    async def start(self) -> None:
        """Returns when it takes calls. Raises `SandboxUnavailable`."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=Path(__file__).parents[2],
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout
        if not await self._process.stdout.readline():
            raise SandboxUnavailable(f"the node ended with code {await self._process.wait()} before it was ready")

    async def kill(self) -> None:
        """Without any warning; its programs go with it."""
        assert self._process
        process, self._process = self._process, None
        if process.returncode is None:
            self.core_s += tree_cpu_s(process.pid)
            process.send_signal(signal.SIGKILL)
            await process.wait()

    def resident_mb(self) -> float:
        """MiB of the node itself, programs left out."""
        assert self._process
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
