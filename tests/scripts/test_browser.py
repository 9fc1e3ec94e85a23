"""Finding or getting a browser: which one is taken, and what is said where there is none. Programs are stand-ins."""

import os
import shutil
from pathlib import Path

import pytest

from scripts import browser
from scripts.packages import SetupError

WORKS = "#!/bin/sh\necho Chromium 153.0.0.0\n"
SNAP = "#!/bin/sh\necho Command requires the chromium snap to be installed.\nexit 10\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone on a machine without any browser, without apt-get and without root."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return tmp_path


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_with_none_the_error_names_the_commands(root: Path) -> None:
    with pytest.raises(SetupError) as failed:
        browser.find(root)
    for command in ("make browser", "apt-get install chromium", "export CHROMIUM="):
        assert command in str(failed.value)


@pytest.mark.parametrize("name", browser.NAMES)
def test_one_on_path_is_found(root: Path, name: str) -> None:
    program = put(root / "bin" / name, WORKS)
    assert browser.find(root) == browser.Browser(program)


def test_a_name_without_a_browser_behind_it_is_passed_over(root: Path) -> None:
    put(root / "bin/chromium-browser", SNAP)
    chrome = put(root / "bin/google-chrome", WORKS.replace("Chromium", "Google Chrome"))
    assert browser.find(root).executable == chrome


def test_the_one_that_was_named_is_taken_or_refused_by_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root / "bin/chromium", WORKS)
    named = put(root / "mine", WORKS)
    monkeypatch.setenv("CHROMIUM", str(named))
    assert browser.find(root).executable == named
    named.write_text(SNAP)
    for act in (browser.find, browser.get):
        with pytest.raises(SetupError, match=f"CHROMIUM={named} is no Chromium that runs"):
            act(root)


def test_the_one_in_the_environment_gets_its_own_libraries_and_fonts(root: Path) -> None:
    unpacked = root / ".venv/browser/unpacked"
    put(unpacked / "chromium", '#!/bin/sh\n[ -n "$LD_LIBRARY_PATH" ] && echo Chromium 153.0.0.0\n')
    found = browser.find(root)
    assert found.environment()["LD_LIBRARY_PATH"].split(":")[0] == str(unpacked / "al2023/lib")
    assert found.environment()["FONTCONFIG_FILE"] == str(unpacked / "fonts.conf")


def test_getting_one_leaves_one_alone_that_is_there(root: Path) -> None:
    program = put(root / "bin/chromium", WORKS)
    assert browser.get(root).executable == program


def test_what_could_not_be_had_is_told_with_every_reason(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(browser, "is_debian", lambda release: True)
    put(root / "bin/apt-get", "#!/bin/sh\necho E: Unable to locate package chromium\nexit 100\n")
    monkeypatch.setattr(browser.Node, "install", lambda node, folder: failing("npm ci failed"))
    with pytest.raises(SetupError) as failed:
        browser.get(root)
    assert "apt-get update failed (exit code 100):\nE: Unable to locate package chromium" in str(failed.value)
    assert "npm ci failed" in str(failed.value)
    assert "make browser" in str(failed.value)


def failing(message: str) -> None:
    raise SetupError(message)


def test_apt_is_asked_by_root_alone_and_without_questions(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = root / "asked"
    put(root / "bin/apt-get", f'#!/bin/sh\necho "$DEBIAN_FRONTEND $*" >> {asked}\n')
    monkeypatch.setattr(browser, "is_debian", lambda release: True)
    monkeypatch.setattr(browser, "install_with_npm", lambda root: failing("no npm"))
    with pytest.raises(SetupError):
        browser.get(root)
    assert not asked.exists()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SetupError):
        browser.get(root)
    update, install = asked.read_text().splitlines()
    assert update.startswith("noninteractive ")
    assert install.endswith(" install --no-install-recommends chromium")
    assert " -y " in install


def test_ubuntus_package_of_that_name_is_not_asked_for(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\n')
    assert not browser.is_debian(release)
    release.write_text('NAME="Debian GNU/Linux"\nID=debian\n')
    assert browser.is_debian(release)
    assert not browser.is_debian(tmp_path / "none")


def test_one_that_prints_its_version_but_does_not_start_is_told_with_its_words(root: Path) -> None:
    (root / "bin/timeout").symlink_to(shutil.which("timeout", path=os.defpath) or "")
    broken = put(root / "broken", "#!/bin/sh\necho cannot open display >&2\nexit 1\n")
    with pytest.raises(SetupError, match="broken does not start:\ncannot open display"):
        browser.require_start(browser.Browser(broken))
    good = put(root / "good", "#!/bin/sh\necho DevTools listening on ws://127.0.0.1:1 >&2\n")
    browser.require_start(browser.Browser(good))
