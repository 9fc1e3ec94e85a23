"""Installing a lock: what pip is asked, the second try for torch's CPU build, and what an error says."""

import sys
from pathlib import Path

import pytest

from scripts.packages import TORCH_CPU_INDEX, Pip, SetupError, clean_variables, install_pinned

LINES = ["accelerate==1.15.0", "torch==2.13.0+cpu", "yarl==1.25.1"]
NO_TORCH = """\
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu (from versions: 2.13.0)
ERROR: No matching distribution found for torch==2.13.0+cpu
"""
NO_TORCH_UNDER_A_CONSTRAINT = """\
ERROR: Cannot install torch==2.13.0+cpu because these package versions have conflicting dependencies.
The conflict is caused by:
    The user requested torch==2.13.0+cpu
    The user requested (constraint) torch<=2.14.1
"""


class FakePip:
    """Answers each call with the next of the given results, and keeps what it was asked."""

    def __init__(self, *results: tuple[int, str]) -> None:
        self.results = list(results)
        self.asked: list[list[str]] = []

    def __call__(self, arguments: list[str]) -> tuple[int, str]:
        self.asked.append(arguments)
        return self.results.pop(0)


def test_one_call_without_dependencies_when_all_is_found() -> None:
    pip = FakePip((0, ""))
    install_pinned(LINES, pip)
    [asked] = pip.asked
    assert asked[0] == "--no-deps"
    assert sorted(asked[1:]) == LINES


def test_the_build_an_index_may_lack_is_asked_first() -> None:
    pip = FakePip((0, ""))
    install_pinned(LINES, pip)
    assert pip.asked[0][1] == "torch==2.13.0+cpu"


@pytest.mark.parametrize("refusal", [NO_TORCH, NO_TORCH_UNDER_A_CONSTRAINT])
def test_a_lacking_cpu_build_is_sought_in_pytorchs_index_and_that_is_said(refusal: str) -> None:
    pip, said = FakePip((1, refusal), (0, "")), []
    install_pinned(LINES, pip, said.append)
    first, second = pip.asked
    assert second == ["--extra-index-url", TORCH_CPU_INDEX, *first]
    assert "torch==2.13.0+cpu" in said[0]
    assert TORCH_CPU_INDEX in said[0]


def test_when_that_index_has_none_either_the_error_names_the_setting() -> None:
    with pytest.raises(SetupError, match=r"torch==2\.13\.0\+cpu is in none of the indexes: set PIP_EXTRA_INDEX_URL"):
        install_pinned(LINES, FakePip((1, NO_TORCH), (1, NO_TORCH)), lambda text: None)


def test_another_failure_is_not_tried_again_and_keeps_pips_words() -> None:
    pip = FakePip((1, "ERROR: No matching distribution found for yarl==1.25.1"))
    with pytest.raises(SetupError, match=r"for yarl==1\.25\.1"):
        install_pinned(LINES, pip)
    assert len(pip.asked) == 1


def test_pips_output_goes_to_the_log_and_to_the_follower(tmp_path: Path) -> None:
    seen: list[str] = []
    status, output = Pip(Path(sys.executable), tmp_path / "install.log", seen.append)(["--no-such-option"])
    assert status == 2
    assert "no such option" in output
    assert (tmp_path / "install.log").read_text() == output == "".join(seen)


def test_what_leads_astray_is_dropped_and_the_sites_own_settings_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_USER", "1")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    clean = clean_variables()
    assert not {"PYTHONPATH", "PIP_USER"} & clean.keys()
    assert clean["PIP_INDEX_URL"] == "https://mirror.example/simple"
