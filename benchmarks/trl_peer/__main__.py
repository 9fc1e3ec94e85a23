"""``python -m benchmarks.trl_peer``: freeze what TRL computes on a small batch into ``tests/numerics``."""

import subprocess
import sys
from pathlib import Path

from benchmarks.trl_peer.environment import trl_environment
from scripts.packages import SetupError

ROOT = Path(__file__).resolve().parents[2]
FROZEN = ROOT / "tests" / "numerics" / "trl_frozen.json"


def main() -> None:
    try:
        python = trl_environment()
    except SetupError as error:
        sys.exit(f"TRL's environment could not be made: {error}")
    subprocess.run([python, "-m", "benchmarks.trl_peer.freeze", FROZEN], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
