"""Generated problems: chained operations on whole numbers, answered by a short Python program.

Each operation knows the expression that computes it and expressions that a careless program would use instead; the
SFT generator (``sft_trajectories.py``) plants those. Randomness is the caller's ``random.Random``, so a problem set
is a function of its seed. Leaves out anything that needs a model.
"""

import math
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from engine.data.problem import Problem

LARGEST_ANSWER = 10**9


@dataclass(frozen=True, slots=True)
class Operation:
    """One step: its sentence, the right expression of ``x``, wrong ones, and whether it needs ``import math``."""

    name: str
    sentence: str
    expression: str
    wrong: tuple[str, ...]
    needs_math: bool = False


@dataclass(frozen=True, slots=True)
class ArithmeticProblem:
    """A problem with the operations that it chains, first to last."""

    problem: Problem
    operations: tuple[Operation, ...]

    @property
    def needs_math(self) -> bool:
        return any(operation.needs_math for operation in self.operations)


def _product(rng: random.Random) -> Operation:
    a, b = rng.randint(11, 99), rng.randint(11, 99)
    sentence = rng.choice([f"Compute {a} times {b}.", f"Take the product of {a} and {b}."])
    return Operation("product", sentence, f"{a}*{b}", (f"{a}+{b}",))


def _power_remainder(rng: random.Random) -> Operation:
    a, b, m = rng.randint(2, 9), rng.randint(11, 99), rng.randint(11, 99)
    sentence = f"Find the remainder of {a} to the power {b} when divided by {m}."
    return Operation("power_remainder", sentence, f"pow({a},{b},{m})", (f"{a}*{b}%{m}", f"pow({a},{b})//{m}"))


def _common_divisor(rng: random.Random) -> Operation:
    g = rng.randint(2, 20)
    a, b = g * rng.randint(6, 49), g * rng.randint(6, 49)
    sentence = f"Find the greatest common divisor of {a} and {b}."
    return Operation("gcd", sentence, f"math.gcd({a},{b})", (f"math.lcm({a},{b})",), needs_math=True)


def _common_multiple(rng: random.Random) -> Operation:
    a, b = rng.randint(11, 99), rng.randint(11, 99)
    sentence = f"Find the least common multiple of {a} and {b}."
    return Operation("lcm", sentence, f"math.lcm({a},{b})", (f"math.gcd({a},{b})",), needs_math=True)


def _sum_of_multiples(rng: random.Random) -> Operation:
    a, n = rng.randint(3, 9), rng.randint(100, 900)
    sentence = f"Add all multiples of {a} below {n}."
    return Operation(
        "multiples",
        sentence,
        f"sum(range({a},{n},{a}))",
        (f"sum(range({n},{a}))", f"len(range({a},{n},{a}))"),
    )


def _count_of_multiples(rng: random.Random) -> Operation:
    a, n = rng.randint(3, 9), rng.randint(100, 900)
    sentence = f"Count the multiples of {a} up to {n}."
    return Operation("count_multiples", sentence, f"len(range({a},{n}+1,{a}))", (f"sum(range({a},{n}+1,{a}))",))


def _count_of_divisors(rng: random.Random) -> Operation:
    n = rng.randint(100, 999)
    right = f"sum({n}%d==0 for d in range(1,{n}+1))"
    return Operation(
        "count_divisors",
        f"Count the divisors of {n}.",
        right,
        (f"sum(d for d in range(1,{n}+1) if {n}%d==0)",),
    )


def _sum_of_divisors(rng: random.Random) -> Operation:
    n = rng.randint(100, 999)
    right = f"sum(d for d in range(1,{n}+1) if {n}%d==0)"
    return Operation("sum_divisors", f"Add the divisors of {n}.", right, (f"sum({n}%d==0 for d in range(1,{n}+1))",))


def _multiply(rng: random.Random) -> Operation:
    k = rng.randint(2, 9)
    return Operation("multiply", f"Multiply by {k}.", f"x*{k}", (f"x+{k}",))


def _add(rng: random.Random) -> Operation:
    k = rng.randint(11, 99)
    return Operation("add", f"Add {k}.", f"x+{k}", (f"x*{k}",))


def _subtract_from(rng: random.Random) -> Operation:
    k = rng.randint(11, 99)
    return Operation("subtract", f"Subtract it from {k}.", f"{k}-x", (f"x-{k}",))


def _remainder(rng: random.Random) -> Operation:
    k = rng.randint(11, 97)
    return Operation("remainder", f"Take the remainder modulo {k}.", f"x%{k}", (f"x//{k}",))


def _digit_sum(rng: random.Random) -> Operation:
    return Operation("digit_sum", "Replace it by its digit sum.", "sum(map(int,str(abs(x))))", ("len(str(abs(x)))",))


def _square(rng: random.Random) -> Operation:
    return Operation("square", "Square it.", "x*x", ("x+x",))


Maker = Callable[[random.Random], Operation]
STARTS: tuple[Maker, ...] = (
    _product,
    _power_remainder,
    _common_divisor,
    _common_multiple,
    _sum_of_multiples,
    _count_of_multiples,
    _count_of_divisors,
    _sum_of_divisors,
)
FOLLOWERS: tuple[Maker, ...] = (_multiply, _add, _subtract_from, _remainder, _digit_sum, _square)


def compute(operations: tuple[Operation, ...]) -> int:
    """The answer: each expression (our own templates, no outside text) evaluated on the one before."""
    x = 0
    for operation in operations:
        x = int(eval(operation.expression, {"math": math, "x": x}))
    return x


def make_problem(rng: random.Random, length: int) -> ArithmeticProblem:
    """A problem of ``length`` chained operations with an answer below a thousand million."""
    while True:
        operations = _chain(rng, length)
        answer = compute(operations)
        if abs(answer) < LARGEST_ANSWER:
            text = " ".join(operation.sentence for operation in operations)
            return ArithmeticProblem(Problem(text, str(answer), kind=f"k={length}"), operations)


def _chain(rng: random.Random, length: int) -> tuple[Operation, ...]:
    """A start and followers; none twice in a row, and at most one square."""
    chain = [rng.choice(STARTS)(rng)]
    while len(chain) < length:
        operation = rng.choice(FOLLOWERS)(rng)
        squared = operation.name == "square" and any(o.name == "square" for o in chain)
        if operation.name != chain[-1].name and not squared:
            chain.append(operation)
    return tuple(chain)


def make_problems(
    rng: random.Random, count: int, operations: Mapping[int, float], *, without: Collection[str] = ()
) -> list[ArithmeticProblem]:
    """``count`` problems, lengths drawn by weight; none has a text in ``without`` (held-out problems)."""
    lengths, weights = list(operations), list(operations.values())
    found: list[ArithmeticProblem] = []
    while len(found) < count:
        made = make_problem(rng, rng.choices(lengths, weights)[0])
        if made.problem.text not in without:
            found.append(made)
    return found


def held_out_problems(seed: int, count: int, operations: Mapping[int, float]) -> list[ArithmeticProblem]:
    """``count`` different evaluation problems; equal seeds give equal sets, lengths in exact proportion to weights."""
    rng = random.Random(f"held-out/{seed}")
    total = sum(operations.values())
    lengths = list(operations)
    quotas = {length: int(count * weight / total) for length, weight in operations.items()}
    for length in lengths[: count - sum(quotas.values())]:
        quotas[length] += 1
    seen: dict[str, ArithmeticProblem] = {}
    for length, quota in quotas.items():
        target = len(seen) + quota
        while len(seen) < target:
            made = make_problem(rng, length)
            seen.setdefault(made.problem.text, made)
    return list(seen.values())
