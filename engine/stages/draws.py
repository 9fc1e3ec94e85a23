"""A problem drawn for a step, and its group as it fills: asked, partly finished and carried over, whole.

Leaves out sampling (``sampling.py``) and what becomes of a whole group (``rounds.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

from engine.contract.stages import RlStage
from engine.contract.trajectory import Trajectory
from engine.data.problem import Problem
from engine.randomness import uniform
from engine.rollout.response import Begun
from engine.stages.sampling import Ask, Sampled

_NOTHING: Mapping[int, Begun] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Draw:
    """The ``place``-th problem that ``step`` drew.

    ``halted`` are the rollouts, by replica, that were under way when a step ended; None: all of the group are still to
    begin. ``finished`` are those that wait for them. What is in neither is left out.
    """

    problem: Problem
    step: int
    place: int
    finished: tuple[Trajectory, ...] = ()
    halted: Mapping[int, Begun] | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """From a checkpoint, which has no rollouts: they begin anew."""
        problem = Problem(stored["problem"], stored["answer"], stored["kind"])
        return cls(problem, stored["step"], stored["place"])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for ``json.dumps``: the problem and when it was drawn."""
        problem = {"problem": self.problem.text, "answer": self.problem.answer, "kind": self.problem.kind}
        return {"step": self.step, "place": self.place, **problem}

    def group(self, stage: str) -> str:
        return f"{stage}/{self.step}/{self.place}"

    def asks(self, stage: RlStage, seed: int, step: int) -> Iterator[Ask]:
        """Every rollout that is missing, each with its stored uniform of down-sampling, for the present ``step``.

        A function of the draw: asked anew after a crash, it is the same group with the same uniforms.
        """
        halted = _NOTHING if self.halted is None else self.halted
        for replica in range(stage.rollouts_per_problem) if self.halted is None else sorted(halted):
            u = uniform(seed, stage.name, self.step, self.place, replica)
            yield Ask(self.problem, stage.name, step, self.group(stage.name), replica, u, halted.get(replica))

    @property
    def whole(self) -> bool:
        """Whether nothing is under way any more."""
        return self.halted is not None and not self.halted


def after(draws: Sequence[Draw], stage: str, step: int, sampled: Sampled) -> list[Draw]:
    """The draws with what a batch of ``step`` came to; rollouts that waited for others are of this step, too, now."""
    ended: dict[str, list[Trajectory]] = {}
    for trajectory in sampled.finished:
        ended.setdefault(trajectory.group, []).append(trajectory)
    halted: dict[str, dict[int, Begun]] = {}
    for ask, begun in sampled.halted:
        halted.setdefault(ask.group, {})[ask.replica] = begun
    names = [draw.group(stage) for draw in draws]
    return [
        _filled(draw, step, ended.get(name, []), halted.get(name, {})) for draw, name in zip(draws, names, strict=True)
    ]


def _filled(draw: Draw, step: int, ended: Sequence[Trajectory], halted: Mapping[int, Begun]) -> Draw:
    waited = [each.model_copy(update={"step": step}) for each in draw.finished]
    return replace(draw, finished=(*waited, *ended), halted=halted)


def open_rollouts(draws: Sequence[Draw]) -> int:
    """Rollouts that are under way."""
    return sum(len(draw.halted or _NOTHING) for draw in draws)
