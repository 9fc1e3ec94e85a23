"""Which zygotes there are, what each has imported and rehearsed, and which one a program goes to."""

import re
from dataclasses import dataclass

_MATHS = ("numpy", "scipy", "sympy", "mpmath", "networkx")
_IMPORTS_MATHS = re.compile(rf"^.*\b(?:import|from)\b.*\b(?:{'|'.join(_MATHS)})\b", re.MULTILINE)

_STDLIB = """
argparse array ast asyncio base64 bisect calendar cmath collections collections.abc
concurrent.futures contextlib copy csv ctypes dataclasses datetime decimal difflib enum fractions
functools glob hashlib heapq inspect io itertools json logging math multiprocessing numbers operator
os pathlib pickle platform pprint queue random re shutil signal socket statistics string struct
subprocess sys tempfile textwrap threading time timeit traceback types typing unittest uuid warnings
weakref zlib encodings.idna encodings.latin_1 encodings.utf_16
"""

_WARM_STDLIB = """
import asyncio, fractions, io, json, random, statistics, traceback
try:
    raise ValueError("rehearsal")
except ValueError:
    traceback.print_exc(file=io.StringIO())
json.loads(json.dumps({"a": [1.5, None]}))
statistics.mean([fractions.Fraction(1, 2), random.random()])
"""
_WARM_NUMPY = """
import numpy as np
a = np.random.default_rng(0).random((8, 8))
np.linalg.solve(a, a @ a), np.linalg.eigh(a + a.T), np.fft.fft(a), np.random.rand(2), str(a)
np.polyfit([0, 1, 2], [1, 2, 4], 1)
"""
_WARM_SYMPY = """
import sympy as s
x, y = s.symbols("x y")
s.solve(x**3 - 2*x + 1, x), s.solve([x + y - 3, x - y - 1], [x, y])
s.factor(x**4 - 1), s.expand((x + y)**3)
s.integrate(s.sin(x) * x, x), s.integrate(1 / (1 + x**2), x)
s.diff(s.exp(x**2), x), s.limit(s.sin(x) / x, x, 0)
s.simplify(s.sin(x)**2 + s.cos(x)**2), s.factorint(360), s.isprime(97), s.Matrix([[1, 2], [3, 4]]).inv()
s.N(s.pi, 30), s.latex(s.sqrt(x) / 2), str(s.Rational(1, 3)), s.nsolve(s.cos(x) - x, 1), s.binomial(5, 2)
"""
_WARM_SCIPY = """
from scipy import integrate, optimize, special
optimize.brentq(lambda t: t * t - 2, 0, 2), optimize.minimize(lambda v: (v[0] - 1) ** 2, [0.0])
integrate.quad(lambda t: t * t, 0, 1), special.gamma(5), special.comb(5, 2)
"""


@dataclass(frozen=True)
class Preset:
    """One kind of zygote. A heavier one starts warmer and costs more to fork (page tables grow)."""

    name: str
    modules: tuple[str, ...]
    warm_up: tuple[tuple[str, str], ...]  # (package it needs, program)

    def rehearsals(self) -> tuple[str, ...]:
        """The warm-up programs; each does nothing where its package is absent."""
        return tuple(
            f"import importlib.util\nif importlib.util.find_spec({package!r}):\n    exec({code!r}, {{}})"
            for package, code in self.warm_up
        )


LIGHT = Preset("light", tuple(_STDLIB.split()), (("json", _WARM_STDLIB),))
HEAVY = Preset(
    "heavy",
    (
        *LIGHT.modules,
        "numpy",
        "numpy.random",
        "sympy",
        "scipy.optimize",
        "scipy.special",
        "scipy.integrate",
        "networkx",
    ),
    (*LIGHT.warm_up, ("numpy", _WARM_NUMPY), ("sympy", _WARM_SYMPY), ("scipy", _WARM_SCIPY)),
)


def preset_for(code: str) -> Preset:
    """A guess that decides speed only: any program runs right in either."""
    return HEAVY if _IMPORTS_MATHS.search(code) else LIGHT
