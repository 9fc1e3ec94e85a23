"""The scheduler that a recipe asks for. A rule is one small file, its settings in ``engine.contract.resources``."""

from engine.contract.resources import AimdScheduler, GrowthScheduler, KvCapScheduler, Scheduling
from engine.rollout.scheduling.aimd import Aimd
from engine.rollout.scheduling.growth import Growth
from engine.rollout.scheduling.kv_cap import KvCap
from engine.rollout.scheduling.lengths import LengthModel
from engine.rollout.scheduling.policy import AdmissionPolicy
from engine.rollout.scheduling.scheduler import Scheduler
from engine.rollout.scheduling.static import Static


def make_scheduler(settings: Scheduling, *, max_running: int, lengths: LengthModel) -> Scheduler:
    """A scheduler with the rule of ``rollout.scheduler`` and at most ``max_running`` rollouts in flight an engine."""
    return Scheduler(_rule(settings, max_running), lengths)


def _rule(settings: Scheduling, max_running: int) -> AdmissionPolicy:
    match settings:
        case GrowthScheduler():
            return Growth(max_running, preemption_chance=settings.preemption_chance)
        case AimdScheduler():
            return Aimd(max_running, grow=settings.grow, cut=settings.cut, low=settings.low, high=settings.high)
        case KvCapScheduler():
            return KvCap(max_running)
        case _:
            return Static(max_running)
