"""The programs that are timed, and the mix of them that stands for a training step's calls."""

import random

PROGRAMS = {
    "print": "print(1+1)",
    "numpy": "import numpy as np\na = np.ones((200, 200))\nprint((a @ a).sum())",
    "sympy": "from sympy import symbols, solve\nx = symbols('x')\nprint(solve(x**3 - 6*x**2 + 11*x - 6, x))",
}
ANSWERS = {"print": "2\n", "numpy": "8000000.0\n", "sympy": "[1, 2, 3]\n"}
MIX = {"print": 0.4, "numpy": 0.3, "sympy": 0.3}
"""Share of each program."""


def mixed(calls: int, seed: int) -> list[str]:
    """Names of `calls` programs, drawn by `MIX`."""
    return random.Random(seed).choices(list(MIX), list(MIX.values()), k=calls)
