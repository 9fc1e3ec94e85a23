"""Every backend sits the same exam; only the jailed one sits its hostile part."""

from pathlib import Path

import pytest

from sandbox.backend.conformance import BEHAVIOUR, HOSTILE, MEMORY_OF_MANY, failures
from sandbox.backend.forkserver import seccomp
from sandbox.backend.forkserver.cgroups import GroupV2
from sandbox.backend.forkserver.presets import preset_for
from sandbox.backend.subprocess_backend import SubprocessBackend
from sandbox.contract import ExecRequest, Limits
from tests.sandbox.support import PYTHON, SandboxThread


@pytest.mark.e2e
def test_forkserver_behaviour(sandbox: SandboxThread) -> None:
    assert sandbox.run(failures(sandbox.client.node.backend.run, BEHAVIOUR)) == []


def test_forkserver_contains_hostile_programs(sandbox: SandboxThread) -> None:
    assert sandbox.run(failures(sandbox.client.node.backend.run, HOSTILE)) == []


def test_memory_of_all_processes_counts_together(sandbox: SandboxThread) -> None:
    backend = sandbox.client.node.backend
    if "cgroups" not in backend.describe():
        pytest.skip("no writable cgroup on this machine")
    assert sandbox.run(failures(backend.run, (MEMORY_OF_MANY,))) == []


@pytest.mark.asyncio
@pytest.mark.e2e
async def test_subprocess_behaviour() -> None:
    backend = SubprocessBackend(PYTHON, slots=1)
    await backend.start()
    assert await failures(backend.run, BEHAVIOUR) == []
    assert "NO ISOLATION" in backend.describe()


@pytest.mark.parametrize(
    "code",
    [
        "import random; print(random.random())",
        "import numpy as np; print(np.random.rand(), np.random.default_rng().random())",
        "from sympy.core.random import rng; print(rng.random())",
        "import uuid; print(uuid.uuid4())",
    ],
)
def test_no_two_calls_draw_the_same_numbers(sandbox: SandboxThread, code: str) -> None:
    drawn = [sandbox.run(sandbox.client.execute(ExecRequest(code=code))).stdout for _ in range(3)]
    assert len({*drawn}) == 3
    assert all(drawn)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("numpy = 3\nprint('import')", "light"),
        ("import numpy", "numpy"),
        ("if 1:\n  import math, sympy as sp", "sympy"),
        ("from scipy.optimize import brentq", "heavy"),
        ("import numpy, sympy", "heavy"),
    ],
)
def test_a_program_goes_to_the_zygote_that_has_its_imports(code: str, name: str) -> None:
    assert preset_for(code).name == name


def test_filter_fits_the_kernel() -> None:
    assert len(seccomp.build()) % 8 == 0
    assert len(seccomp.build()) // 8 < 4096


def test_cgroup_v2_files_are_written_and_read(tmp_path: Path) -> None:
    for name in ("cgroup.procs", "memory.max", "memory.swap.max", "pids.max"):
        (tmp_path / name).touch()
    events = tmp_path / "memory.events"
    events.write_text("oom 4\noom_kill 3\n")
    group = GroupV2(tmp_path)
    group.limit(Limits(memory_mb=64, processes=5))
    written = [(tmp_path / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")]
    assert written == [str(64 << 20), "0", "5"]
    assert not group.oom_killed()
    events.write_text("oom 5\noom_kill 4\n")
    assert group.oom_killed()
    group.close()
