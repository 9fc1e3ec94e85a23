"""The paper's rule (section 3): as many rollouts an engine as its KV cache holds at their greatest length.

For equal lengths K = min(max_running, (kv_blocks - 1) // ceil(max_tokens / block_tokens)); block 0 is vLLM's null
block. Lengths may differ: what is counted is blocks. The engine with the most free blocks gets the next rollout.
Nothing is ever preempted; but most rollouts end long before their greatest length, and engines stay half empty.
"""

from collections.abc import Sequence

from engine.rollout.scheduling.forecast import Forecast
from engine.rollout.scheduling.ledger import Ledger, Rollout
from engine.rollout.scheduling.sticky import Sticky


class KvCap(Sticky):
    """K rollouts an engine."""

    def place(self, rollout: Rollout, engines: Sequence[Ledger], forecast: Forecast) -> Ledger | None:
        fitting = [one for one in engines if one.in_flight < self.max_running and fits_at_worst(rollout, one)]
        return max(fitting, key=lambda one: (free_blocks(one), -one.in_flight), default=None)


def free_blocks(ledger: Ledger) -> int:
    """Blocks that nobody needs, however long all get."""
    return ledger.usable_blocks - ledger.reserved_blocks


def fits_at_worst(rollout: Rollout, ledger: Ledger) -> bool:
    """Whether it has room even if all get as long as they may."""
    return ledger.blocks_for(rollout.size.max_tokens) <= free_blocks(ledger)
