"""Running pip for a lock: its whole output kept, and a second try for the CPU build of torch.

PyPI has no `+cpu` builds. Where the configured indexes lack the pinned one, PyTorch's own CPU index is
asked as well.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Where pip is configured with constraints, it reports a build it cannot find as a conflict with them.
NOT_FOUND = re.compile(r"(?:No matching distribution found for|The user requested) (\S+\+cpu)\b")
SHOWN_LINES = 25


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what mends it."""


class Runner(Protocol):
    """Runs `pip install` with these arguments; returns its exit status and everything it printed."""

    def __call__(self, arguments: list[str]) -> tuple[int, str]: ...


@dataclass(frozen=True)
class Pip:
    """The pip of an environment; each line goes to the log and to `follow`."""

    python: Path
    log: Path
    follow: Callable[[str], None]

    def __call__(self, arguments: list[str]) -> tuple[int, str]:
        command = [
            str(self.python),
            "-m",
            "pip",
            "install",
            "--no-input",
            "--progress-bar",
            "off",
            *arguments,
        ]
        scratch = self.log.parent / "scratch"  # beside the environment: /tmp is a small memory disk on many machines
        scratch.mkdir(exist_ok=True)
        settings = {**clean_variables(), "TMPDIR": str(scratch), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        with (
            self.log.open("a") as log,
            subprocess.Popen(
                command,
                env=settings,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ) as process,
        ):
            lines = []
            for line in process.stdout or ():
                log.write(line)
                lines.append(line)
                self.follow(line)
        shutil.rmtree(scratch, ignore_errors=True)
        return process.returncode, "".join(lines)


def clean_variables() -> dict[str, str]:
    """The user's own (indexes, proxies, certificates) without what leads Python out of an environment."""
    astray = ("PYTHONPATH", "PYTHONHOME", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_REQUIRE_HASHES")
    return {key: value for key, value in os.environ.items() if key not in astray}


def install_pinned(lines: list[str], run: Runner, say: Callable[[str], None] = print) -> None:
    """Install exactly these `name==version` lines, without what they depend on."""
    # A build that an index may lack goes first: its lack shows in seconds, not after the other downloads.
    ordered = sorted(lines, key=lambda line: "+" not in line)
    arguments = ["--no-deps", *ordered]
    status, output = run(arguments)
    lacking = NOT_FOUND.search(output)
    if status != 0 and lacking:
        say(f"\nThe configured package indexes lack {lacking[1]}: asking PyTorch's own as well ({TORCH_CPU_INDEX})")
        status, output = run(["--extra-index-url", TORCH_CPU_INDEX, *arguments])
    if status != 0:
        raise SetupError(explain(output))


def explain(output: str) -> str:
    """The end of pip's output, and what usually mends it."""
    tail = "\n".join(output.splitlines()[-SHOWN_LINES:])
    missing = NOT_FOUND.search(output)
    hint = (
        f"{missing[1]} is in none of the indexes: set PIP_EXTRA_INDEX_URL to one that has it, "
        "or lift what pip's settings hold against it (`pip config list`)"
        if missing
        else "Check the network and pip's settings (`pip config list`), then run the same command again"
    )
    return f"pip could not install the locked packages:\n{tail}\n{hint}"
