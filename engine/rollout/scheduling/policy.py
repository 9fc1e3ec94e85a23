"""The seam between the scheduler and the rule that admits: one file a rule, this is what they have in common.

Leaves out the books (``ledger.py``) and who keeps them (``scheduler.py``).
"""

from collections.abc import Sequence
from typing import Protocol

from engine.rollout.scheduling.base import EngineStats
from engine.rollout.scheduling.forecast import Forecast
from engine.rollout.scheduling.ledger import Ledger, Rollout
from engine.rollout.scheduling.waiting import Waiting


class AdmissionPolicy(Protocol):
    """The rule: in which order rollouts wait, and which engine has room for the next one. One object a scheduler.

    ``engines`` are the open ones, at least one. The scheduler keeps the books; a rule only reads them.
    """

    waiting: Waiting

    def engines_changed(self, engines: Sequence[Ledger]) -> None:
        """Other engines are open than before, or with other capacities; perhaps none."""

    def prepare(self, engines: Sequence[Ledger], forecast: Forecast) -> None:
        """Something has changed, and decisions follow: put ``waiting`` in order."""

    def place(self, rollout: Rollout, engines: Sequence[Ledger], forecast: Forecast) -> Ledger | None:
        """The engine for a rollout that is next; None: it waits on. What is returned is done."""
        ...

    def freed(self, ledger: Ledger, rollout: Rollout, *, finished: bool) -> None:
        """``rollout`` gave its place in ``ledger`` back."""

    def observe(self, ledger: Ledger, stats: EngineStats) -> None:
        """An engine tells how it is."""

    def stay_or_move(self, rollout: Rollout, engines: Sequence[Ledger]) -> Ledger:
        """Where a rollout's next turn goes: where its prefix is, or another engine if that is worth its re-prefill.

        ``rollout.ledger`` is where it is now.
        """
        ...
