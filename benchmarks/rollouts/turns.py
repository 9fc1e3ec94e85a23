"""Rollouts of a sure policy through the real turn loop, with a tool that waits; no sandbox.

Leaves out engines, and what waiting is.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.rollouts.sure_policy import CONTEXT, WAIT, Talk, problem, renderer
from engine.contract.trajectory import Trajectory
from engine.rollout.agent import RolloutTask, TurnLimits, run_rollout
from engine.rollout.place import Place
from engine.rollout.scheduling.base import Size
from engine.rollout.tools.base import Tool, ToolContext, ToolOutcome
from sandbox.contract import ExecRequest, ExecResult, SandboxStatus, SandboxUnavailable

MAX_RESPONSE_TOKENS: Final = 200


class NoSandbox:
    """For rollouts whose tools need none."""

    async def execute(self, request: ExecRequest) -> ExecResult:
        raise SandboxUnavailable("this measurement has no sandbox")

    async def end_session(self, session: str) -> None:
        """There is none."""

    async def status(self) -> SandboxStatus:
        return SandboxStatus(nodes=(), queued_interactive=0, queued_training=0)


class WaitTool:
    """``WAIT``: does ``work``, then says which turn it was."""

    spec = WAIT

    def __init__(self, work: Callable[[], Awaitable[None]] | None = None) -> None:
        self._work = work

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        if self._work:
            await self._work()
        return ToolOutcome(str(arguments["turn"]))


class Turns:
    """Rollouts of a sure policy through the turn loop: what they are asked, and how one is done."""

    def __init__(self, model: Path, talk: Talk, temperature: float, tool: Tool | None = None) -> None:
        self._renderer = renderer(model)
        self._temperature = temperature
        self._tool = tool or WaitTool()
        self._limits = TurnLimits(
            context_tokens=CONTEXT,
            max_response_tokens=MAX_RESPONSE_TOKENS,
            max_turns=talk.calls + 1,
            max_calls_per_turn=1,
            tool_response_chars=200,
        )

    def tasks(self, count: int, *, group: int) -> list[RolloutTask]:
        """``group`` rollouts of each problem; the right answer to every one is 1."""
        asked = [problem(row // group) for row in range(count)]
        return [
            RolloutTask("rl", 1, text, row % group, text, text, "1", temperature=self._temperature)
            for row, text in enumerate(asked)
        ]

    def size(self, task: RolloutTask) -> Size:
        prompt = len(self._renderer.prompt(task.problem))
        return Size(task.problem_id, prompt, prompt + MAX_RESPONSE_TOKENS)

    async def rollout(self, task: RolloutTask, place: Place) -> Trajectory:
        return await run_rollout(
            task,
            generate=place.generate,
            sandbox=NoSandbox(),
            renderer=self._renderer,
            tools=(self._tool,),
            limits=self._limits,
        )
