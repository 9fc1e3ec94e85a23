"""Which tier a machine allows, how a lack is told, and the folders of the tier that cannot mount any."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.backend.forkserver.scratch import ScratchRoot, remove
from sandbox.backend.leftovers import look
from sandbox.backend.tiers import JAILED, PRIMITIVES, Machine, examine
from sandbox.contract import SandboxUnavailable
from tests.sandbox.support import PYTHON, ROOT

NAMES = [each.name for each in PRIMITIVES]


def machine(*lacks: str) -> Machine:
    """One that refuses the primitives named."""
    return Machine({name: "Operation not permitted" if name in lacks else "" for name in NAMES}, None)


def test_the_strongest_tier_is_chosen() -> None:
    assert machine().tier() == "full"
    assert machine("user namespace", "mount namespace").tier() == "container"
    assert machine("landlock").tier() == "full"
    assert machine().tier("container") == "container"


@settings(max_examples=50)
@given(st.sets(st.sampled_from(NAMES)))
def test_a_tier_is_had_exactly_where_all_that_it_needs_is_there(lacks: set[str]) -> None:
    for tier in JAILED:
        needed = {each.name for each in PRIMITIVES if tier in each.tiers}
        if not needed & lacks:
            assert machine(*lacks).tier(tier) == tier
            continue
        with pytest.raises(SandboxUnavailable) as refused:
            machine(*lacks).tier(tier)
        lines = str(refused.value).splitlines()
        assert [line for line in lines if line.endswith("not permitted")] == [
            f"  {name}: Operation not permitted" for name in NAMES if name in needed & lacks
        ]
        assert "  to mend it: " in str(refused.value)


def test_where_no_tier_can_be_had_both_lacks_are_told() -> None:
    with pytest.raises(SandboxUnavailable, match=r"(?s)full tier.*pid namespace.*container tier.*landlock"):
        machine("pid namespace", "landlock").tier()


def test_no_isolation_is_no_tier_of_the_jail() -> None:
    with pytest.raises(SandboxUnavailable, match="full or container"):
        machine().tier("none")


@pytest.mark.e2e
async def test_the_machine_is_asked_about_every_primitive_and_left_as_it_was() -> None:
    before = look(os.getpid())
    found = await examine(PYTHON)
    assert {*found.findings} == {*NAMES}
    assert look(os.getpid()).beyond(before) == []


async def test_an_interpreter_that_cannot_be_asked_is_told_with_its_own_words(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such luck >&2; exit 3\n")
    python.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match="no such luck"):
        await examine(python)


# Without the scopes of ABI 6, as on Linux 6.2 to 6.11, the filter alone keeps signals and sockets away.
CONFINED = """
import os, signal, socket, sys
sys.path.insert(0, sys.argv[1])
from sandbox.backend.forkserver import container, landlock, seccomp
landlock.abi = lambda: int(sys.argv[3])
container.confine(sys.argv[2], seccomp.shipped())
def refused(act):
    try: act()
    except PermissionError: return True
library, size = os.__file__, os.path.getsize(os.__file__)
def datagram(): socket.socketpair(type=socket.SOCK_DGRAM)
attacks = [
    lambda: open("/etc/passwd"), lambda: open("/proc/self/maps"), lambda: os.truncate(library, size),
    lambda: os.kill(os.getppid(), 0), lambda: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0),
    os.fork, lambda: os.execv(sys.executable, ["python"]), socket.socket, datagram,
]
print([number for number, attack in enumerate(attacks) if not refused(attack)])
open(sys.argv[2] + "/mine", "w").write("x")
os.kill(os.getpid(), 0)
"""


@pytest.mark.parametrize("abi", [3, 4, 5, 6])
def test_older_kernels_confine_as_well(abi: int, tmp_path: Path) -> None:
    command = [str(PYTHON), "-I", "-c", CONFINED, str(ROOT), str(tmp_path), str(abi)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert (tmp_path / "mine").read_text() == "x"


def test_a_scratch_folder_goes_with_all_that_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    root = ScratchRoot.open()
    paths = [root.fresh() for _ in range(3)]
    for path in paths[:2]:
        os.mkdir(path)
    Path(paths[1], "file").touch()
    for path in paths:  # empty, not empty, never made
        asyncio.run(root.clear(path))
    assert [*root.path.iterdir()] == []
    os.mkdir(root.fresh())
    asyncio.run(root.close())
    asyncio.run(root.close())
    assert [*tmp_path.iterdir()] == []


trees: st.SearchStrategy[dict[str, object]] = st.recursive(
    st.just({}), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)


@settings(deadline=None, max_examples=30)
@given(tree=trees, mode=st.sampled_from([0o000, 0o500, 0o700]))
def test_any_tree_is_removed_and_nothing_beside_it(
    tree: dict[str, object], mode: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("scratch")
    (base / "beside").write_text("stays")
    (base / "victim").mkdir()

    def plant(folder: Path, inner: dict[str, object]) -> None:
        (folder / "link").symlink_to(base / "beside")
        (folder / "up").symlink_to(base)
        for name, below in inner.items():
            (folder / name).mkdir()
            plant(folder / name, below)  # type: ignore[arg-type]
        folder.chmod(mode)

    plant(base / "victim", tree)
    remove(base / "victim")
    assert [path.name for path in base.iterdir()] == ["beside"]


def test_folders_nested_deeper_than_a_path_may_be_long_are_removed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    dig = "import os\nfor _ in range(50): os.mkdir('d' * 200); os.chdir('d' * 200)"
    subprocess.run([sys.executable, "-c", dig], cwd=victim, check=True)
    remove(victim)
    assert [*tmp_path.iterdir()] == []


def test_what_a_killed_node_left_is_swept_and_what_a_living_one_has_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    die = (
        "import os, signal\n"
        "from sandbox.backend.forkserver.scratch import ScratchRoot\n"
        "os.makedirs(ScratchRoot.open().fresh() + '/full'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", die], cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    (dead,) = tmp_path.iterdir()
    living = ScratchRoot.open()
    assert not dead.exists()
    second = ScratchRoot.open()
    assert {*tmp_path.iterdir()} == {living.path, second.path}
    asyncio.run(living.close())
    asyncio.run(second.close())
