"""Which zygotes there are, what each has imported and rehearsed, and which one a program goes to."""

import re
from dataclasses import dataclass

_IMPORT = re.compile(r"\b(?:import|from)\b(.*)")

# What short programs import. Every library costs each fork: its mappings and its memory are copied, and then freed.
_STDLIB = """
abc array base64 bisect calendar cmath collections collections.abc contextlib copy dataclasses datetime decimal enum
fractions functools heapq inspect io itertools json math numbers operator os pathlib pickle pprint queue random re
statistics string struct sys textwrap threading time traceback types typing warnings
encodings.latin_1 encodings.utf_16
"""
_MORE_STDLIB = """
argparse ast asyncio concurrent.futures csv ctypes difflib glob hashlib logging multiprocessing platform shutil signal
socket subprocess tempfile timeit unittest uuid weakref zlib encodings.idna
"""
# A light program imports the rest of the library by itself, within milliseconds; but not these, or the maths packages.
_TOLD_APART = re.compile(r"\b(?:asyncio|concurrent|multiprocessing|unittest|numpy|scipy|sympy|mpmath|networkx)\b")

_WARM_STDLIB = """
import fractions, io, json, random, statistics, traceback
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
x, y, z = s.symbols("x y z")
n = s.Symbol("n", integer=True, positive=True)
for roots in ((1, 2), (-1, 3), (2, 2), (1, -2, 4), (0, 1, 5), (-3, -1, 2), (1, 1, 2), (1, -1, 2, -2)):
    polynomial = s.expand(s.prod(x - root for root in roots))
    s.solve(polynomial, x), s.factor(polynomial), s.roots(polynomial, x), s.Poly(polynomial, x).all_coeffs()
for equation in (x**3 - 2*x + 1, x**4 - 5*x**2 + 4, x**2 + x + 1, x**2 - 2, 2*x**2 - 3*x - 7, x**3 + x - 1, 3*x - 4):
    s.solve(equation, x), s.diff(equation, x), str(equation)
s.solveset(x**2 - 1, x), s.simplify((x**2 - 1) / (x - 1))
s.solve([x + y - 3, x - y - 1], [x, y]), s.solve([x**2 + y**2 - 5, x - y - 1], [x, y]), s.solve(s.Eq(x**2, 9), x)
s.linsolve([x + y - 3, x - y - 1], [x, y]), s.solve(s.sqrt(x) - 3, x), s.solve(s.sin(x) - s.Rational(1, 2), x)
s.factor(x**4 - 1), s.expand((x + y)**3), s.apart(1 / (x**2 - 1)), s.together(1/x + 1/y), s.cancel((x**2 - 1)/(x - 1))
s.integrate(s.sin(x) * x, x), s.integrate(1 / (1 + x**2), x), s.integrate(x**2, (x, 0, 1))
s.diff(s.exp(x**2), x), s.limit(s.sin(x) / x, x, 0), s.series(s.cos(x), x, 0, 4), s.summation(n, (n, 1, 10))
s.simplify(s.sin(x)**2 + s.cos(x)**2), s.trigsimp(2*s.sin(x)*s.cos(x)), s.nsimplify(0.25), s.sympify("x**2 + 1/3")
s.factorint(360), s.isprime(97), s.divisors(60), s.gcd(12, 18), s.totient(36), s.primerange(1, 30), s.binomial(5, 2)
matrix = s.Matrix([[1, 2], [3, 4]])
matrix.inv(), matrix.det(), matrix.eigenvals(), matrix.rank(), matrix * matrix
s.N(s.pi, 30), s.latex(s.sqrt(x) / 2), str(s.Rational(1, 3)), s.nsolve(s.cos(x) - x, 1)
s.sqrt(8).evalf(), (x + 1).subs(x, 2)
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
NUMPY = Preset(
    "numpy",
    (*LIGHT.modules, "numpy", "numpy.random"),
    (*LIGHT.warm_up, ("numpy", _WARM_NUMPY)),
)
SYMPY = Preset(
    "sympy",
    (*LIGHT.modules, "sympy"),
    (*LIGHT.warm_up, ("sympy", _WARM_SYMPY)),
)
HEAVY = Preset(
    "heavy",
    (*NUMPY.modules, *_MORE_STDLIB.split(), "sympy", "scipy.optimize", "scipy.special", "scipy.integrate", "networkx"),
    (*NUMPY.warm_up, ("sympy", _WARM_SYMPY), ("scipy", _WARM_SCIPY)),
)
PRESETS = (LIGHT, NUMPY, SYMPY, HEAVY)
_FOR_PACKAGES = {
    frozenset[str](): LIGHT,
    frozenset({"numpy"}): NUMPY,
    frozenset({"sympy"}): SYMPY,
    frozenset({"mpmath"}): SYMPY,
    frozenset({"sympy", "mpmath"}): SYMPY,
}


def preset_for(code: str) -> Preset:
    """A guess that decides speed only: any program runs right in any."""
    packages = {package for line in _IMPORT.findall(code) for package in _TOLD_APART.findall(line)}
    return _FOR_PACKAGES.get(frozenset(packages), HEAVY)
