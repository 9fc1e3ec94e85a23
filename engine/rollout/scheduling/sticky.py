"""What most rules have in common: one queue in order, rollouts stay where they are, and nothing is learned."""

from collections.abc import Sequence

from engine.rollout.scheduling.base import EngineStats
from engine.rollout.scheduling.forecast import Forecast
from engine.rollout.scheduling.ledger import Ledger, Rollout
from engine.rollout.scheduling.waiting import InOrder, Waiting


class Sticky:
    """Base of the rules. ``max_running`` is the most rollouts in flight on one engine."""

    def __init__(self, max_running: int) -> None:
        if max_running < 1:
            raise ValueError(f"max_running must be at least 1, is {max_running}")
        self.max_running = max_running
        self.waiting: Waiting = InOrder()

    def engines_changed(self, engines: Sequence[Ledger]) -> None:
        """Nothing to do."""

    def prepare(self, engines: Sequence[Ledger], forecast: Forecast) -> None:
        """Nothing to do."""

    def freed(self, ledger: Ledger, rollout: Rollout, *, finished: bool) -> None:
        """Nothing to do."""

    def observe(self, ledger: Ledger, stats: EngineStats) -> None:
        """Nothing to do."""

    def stay_or_move(self, rollout: Rollout, engines: Sequence[Ledger]) -> Ledger:
        """It stays: its prefix is there."""
        assert rollout.ledger is not None
        return rollout.ledger
