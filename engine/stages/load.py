"""What a rollout batch asked of its engines while it sampled, and of its tools and the sandbox: the load events.

``engine.load`` is a timeline: one event an engine at the batch's start, every so many seconds, and at its end.
``sandbox.load`` is one event a batch. Leaves out the engines' figures (``engine.rollout.pool``) and writing the events
(``context.py``).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from engine.contract.events import NodeLoad, SandboxLoad
from engine.contract.trajectory import Trajectory
from engine.rollout.calls import PARSE_ERROR
from engine.rollout.tools.base import Sandbox
from engine.stages.metrics import mean, percentile
from sandbox.contract import SandboxStatus, SandboxUnavailable

ERRORS_TOLD = 20
STATUS_S = 2.0
"""Seconds that a sandbox may take to say how it is; a step does not wait longer for a figure."""

EngineFigures = dict[str, dict[str, float]]
"""By engine, figures by name."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def engine_timeline(
    load: Callable[[], Awaitable[EngineFigures]], tell: Callable[[EngineFigures], None], *, every_s: float
) -> AsyncIterator[None]:
    """While inside, ``tell`` what ``load`` says: at once, every ``every_s`` seconds, at the end if all is well."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(every_s)
            tell(await load())

    tell(await load())
    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
    tell(await load())


async def sandbox_load(stage: str, step: int, trajectories: Sequence[Trajectory], sandbox: Sandbox) -> SandboxLoad:
    """The batch's calls, and how the sandbox is now; one that does not answer leaves its part out."""
    made = load_of_calls(stage, step, trajectories)
    try:
        async with asyncio.timeout(STATUS_S):
            status = await sandbox.status()
    except (SandboxUnavailable, TimeoutError) as error:
        _log.warning("the sandbox does not say how it is: %s", str(error) or f"no answer in {STATUS_S:g} s")
        return made
    return made.model_copy(update=_of_status(status))


def load_of_calls(stage: str, step: int, trajectories: Sequence[Trajectory]) -> SandboxLoad:
    """Counts and seconds of all calls that could be parsed."""
    calls = [call for t in trajectories for call in t.calls if call.status != PARSE_ERROR]
    queued, wall = [call.queued_s for call in calls], [call.wall_s for call in calls]
    return SandboxLoad(
        stage=stage,
        step=step,
        calls=len(calls),
        statuses=dict(Counter(call.status for call in calls)),
        queued_s=mean(queued) if calls else 0.0,
        wall_s=mean(wall) if calls else 0.0,
        queued_p99_s=percentile(queued, 0.99) if calls else None,
        wall_p99_s=percentile(wall, 0.99) if calls else None,
        tools=dict(Counter(call.name for call in calls)),
        errors=dict(Counter(call.error_type for call in calls if call.error_type).most_common(ERRORS_TOLD)),
    )


def _of_status(status: SandboxStatus) -> dict[str, object]:
    return {
        "queued": status.queued_interactive + status.queued_training,
        "nodes": tuple(
            NodeLoad(name=node.name, tier=node.tier, slots=node.slots, busy=node.busy, sessions=node.sessions)
            for node in status.nodes
        ),
    }
