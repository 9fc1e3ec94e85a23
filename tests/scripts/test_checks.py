"""The checks of the machine: each lack is named with what mends it, all at once; a good one passes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.checks import GB, Facts, can_run, cpu_flags, free_memory, gather, problems

ROOT = Path(__file__).resolve().parents[2]
GOOD = Facts(
    system="Linux",
    machine="x86_64",
    glibc=(2, 36),
    cpu_flags=frozenset({"avx", "avx2", "sse4_2"}),
    has_ensurepip=True,
    python_header=Path("/usr/include/python3.11/Python.h"),
    has_python_header=True,
    compiler="c++",
    has_compiler=True,
    has_libnuma=True,
    is_root=False,
    has_user_namespaces=False,
    has_own_postgres=False,
    free_memory_bytes=16 * GB,
    free_disk_bytes=100 * GB,
    root=Path("/home/ada/starloom"),
)


def test_a_good_machine_has_no_problem() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("lack", "mends"),
    [
        ({"has_libnuma": False}, "apt-get install libnuma1"),
        ({"has_compiler": False}, "apt-get install g++"),
        ({"has_python_header": False}, "apt-get install python3.11-dev"),
        ({"has_ensurepip": False}, "apt-get install python3.11-venv"),
        ({"cpu_flags": frozenset({"avx"})}, "AVX2"),
        ({"glibc": (2, 27)}, "glibc 2.27"),
        ({"glibc": None}, "another C library"),
        ({"machine": "aarch64"}, "Linux on aarch64"),
        ({"system": "Darwin", "machine": "arm64", "glibc": None}, "Darwin on arm64"),
        ({"is_root": True}, "set DATABASE_URL"),
        ({"free_memory_bytes": 7_900_000_000}, "7.9 GB of memory is free, 8 GB is needed"),
        ({"free_disk_bytes": 1 * GB}, "1.0 GB of disk is free at /home/ada/starloom, 10 GB is needed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_lack_is_named_once_with_what_mends_it(lack: dict[str, Any], mends: str) -> None:
    [problem] = problems(replace(GOOD, **lack))
    assert mends in problem


def test_exactly_enough_is_enough() -> None:
    assert problems(replace(GOOD, glibc=(2, 28), free_memory_bytes=8 * GB, free_disk_bytes=10 * GB)) == []


@pytest.mark.parametrize("way_out", ["has_user_namespaces", "has_own_postgres"])
def test_root_needs_one_way_to_a_postgres(way_out: str) -> None:
    assert problems(replace(GOOD, is_root=True, **{way_out: True})) == []


def test_all_lacks_are_reported_at_once() -> None:
    bare = replace(
        GOOD,
        has_libnuma=False,
        has_compiler=False,
        has_python_header=False,
        has_ensurepip=False,
        free_disk_bytes=0,
    )
    assert len(problems(bare)) == 5


def test_gather_finds_this_machine_fit() -> None:
    """It runs these tests, so whatever `gather` misses here it would miss anywhere (room apart)."""
    seen = replace(gather(ROOT), free_memory_bytes=GOOD.free_memory_bytes, free_disk_bytes=GOOD.free_disk_bytes)
    assert problems(seen) == []


def test_a_command_that_is_not_there_cannot_run() -> None:
    assert can_run("true")
    assert not can_run("false")
    assert not can_run("no-such-command")


def test_cpu_flags_are_words(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nvmx flags\t: avx2x\nflags\t\t: fpu avx512f\n\nflags\t\t: fpu avx2\n")
    assert cpu_flags(cpuinfo) == {"fpu", "avx512f"}
    assert cpu_flags(tmp_path / "none") == frozenset()


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, 16_384_000),
        ({"memory.max": "max\n"}, 16_384_000),
        ({"memory.max": "1000\n"}, 1000),
        ({"memory/memory.limit_in_bytes": "2000\n"}, 2000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 16_384_000),
    ],
)
def test_a_containers_limit_caps_free_memory(tmp_path: Path, limits: dict[str, str], expected: int) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 32000 kB\nMemAvailable:   16000 kB\n")
    (tmp_path / "memory").mkdir()
    for name, text in limits.items():
        (tmp_path / name).write_text(text)
    assert free_memory(tmp_path / "meminfo", tmp_path) == expected
