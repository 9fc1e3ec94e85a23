"""Write requirements/*.lock from requirements/*.in: exact versions, resolved together, split by use.

Engine, platform and development tools share one resolution, so that a package has the same version wherever
it appears; the sandbox's environment is resolved by itself. Packages that only do harm on a CPU
(``LEFT_OUT``) are dropped here, which is why the locks are installed with ``--no-deps``.

Run by ``make lock``, in an environment with a current pip. Leaves out: hashes (the CPU build of torch comes
from different indexes with different file names).
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name

FOLDER = Path(__file__).parent.parent / "requirements"
TOGETHER = ("engine", "dev", "platform")

LEFT_OUT = {
    # CUDA builds on PyPI; beside a CPU torch they break transformers (no operator torchvision::nms).
    "torchvision",
    "torchaudio",
    "torchcodec",
    # A gigabyte and more that a CPU never runs.
    "triton",
    "opencv-python-headless",
    "intel-openmp",
    "intel-cmplr-lib-ur",
}

Package = dict[str, Any]


def resolve(names: tuple[str, ...]) -> dict[str, Package]:
    """Let pip resolve the named .in files together; name -> its entry in pip's report."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        inputs = [word for name in names for word in ("-r", str(FOLDER / f"{name}.in"))]
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
        subprocess.run([*command, "--report", report.name, *inputs], check=True)
        entries = json.loads(Path(report.name).read_text())["install"]
    return {canonicalize_name(entry["metadata"]["name"]): entry["metadata"] for entry in entries}


def requirements_of(package: Package, extras: set[str]) -> list[Requirement]:
    """The requirements of a package that hold on this machine, for these extras."""
    found = [Requirement(text) for text in package.get("requires_dist", [])]
    return [r for r in found if r.marker is None or any(r.marker.evaluate({"extra": e}) for e in extras | {""})]


def closure(name: str, packages: dict[str, Package]) -> dict[str, str]:
    """Everything that requirements/NAME.in needs: canonical name -> version, without LEFT_OUT."""
    lines = (FOLDER / f"{name}.in").read_text().splitlines()
    waiting = [Requirement(line) for line in lines if line and not line.startswith("#")]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen or key[0] in LEFT_OUT:
            continue
        seen.add(key)
        waiting += requirements_of(packages[key[0]], set(wanted.extras))
    return {key[0]: packages[key[0]]["version"] for key in seen}


def write(name: str, versions: dict[str, str]) -> None:
    lines = [f"{package}=={version}" for package, version in sorted(versions.items())]
    text = f"# Written by `make lock` from {name}.in; install with --no-deps.\n" + "\n".join(lines) + "\n"
    (FOLDER / f"{name}.lock").write_text(text)
    print(f"requirements/{name}.lock: {len(lines)} packages")


def main() -> None:
    together = resolve(TOGETHER)
    engine = closure("engine", together)
    write("engine", engine)
    write("platform", closure("platform", together))
    write("dev", {k: v for k, v in closure("dev", together).items() if k not in engine})
    write("sandbox", closure("sandbox", resolve(("sandbox",))))


if __name__ == "__main__":
    main()
