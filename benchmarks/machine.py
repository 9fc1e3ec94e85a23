"""What stands beside every figure: the machine that it was measured on."""

import os
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """The load is that of the minute before: other work on the cores makes spreads wide."""
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
