"""Toys for the rollout tests: a renderer of bytes, a policy that says given turns, a sandbox of functions.

Tests cannot import this file (importlib mode), so what they need are fixtures.
"""

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from engine.rollout.agent import RolloutTask, TurnLimits, run_rollout
from engine.rollout.base import EngineCapacity, GenerateRequest
from engine.rollout.scripted_engine import ScriptedEngine
from engine.rollout.tools.base import Tool
from engine.rollout.tools.python import PYTHON_TOOL, PythonTool
from sandbox.contract import ExecRequest, ExecResult, ExecStatus

END, START = 256, 257
PYTHON = (PythonTool(),)
CASES = Path(__file__).parents[2] / "cases" / "toolcalls.jsonl"


class ToyRenderer:
    """A token a byte, and the two marks; the shape of ``engine.data.render``."""

    end_id = END

    def prompt(self, problem: str) -> list[int]:
        return [START, *f"user\n{problem}".encode(), END, 10, START, *b"assistant\n"]

    def tool_turn(self, responses: Sequence[str]) -> list[int]:
        body = "".join(f"<tool_response>{response}</tool_response>" for response in responses)
        return [10, START, *f"user\n{body}".encode(), END, 10, START, *b"assistant\n"]

    def decode(self, ids: Sequence[int]) -> str:
        parts = {END: b"<|im_end|>", START: b"<|im_start|>"}
        return b"".join(parts.get(token) or bytes([token]) for token in ids).decode("utf-8", "replace")


Program = Callable[[ExecRequest], Awaitable[ExecResult]]


class ToySandbox:
    """Runs a program by looking its code up; unknown code prints itself."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}
        self.requests: list[ExecRequest] = []
        self.running = 0
        self.ended: list[str] = []

    async def execute(self, request: ExecRequest) -> ExecResult:
        self.requests.append(request)
        self.running += 1
        try:
            return await self.programs.get(request.code, self.echo)(request)
        finally:
            self.running -= 1

    async def end_session(self, session: str) -> None:
        self.ended.append(session)

    async def echo(self, request: ExecRequest) -> ExecResult:
        return self.result(request, stdout=f"{request.code}\n")

    @staticmethod
    def result(request: ExecRequest, status: str = "ok", **fields: object) -> ExecResult:
        defaults = {
            "stdout": "",
            "stderr": "",
            "exit_code": 0,
            "wall_s": 0.25,
            "queued_s": 0.5,
            "error": None,
        }
        return ExecResult(id=request.id, status=ExecStatus(status), **{**defaults, **fields})


class Conversation:
    """One rollout over a scripted engine that says ``turns`` one after the other; remembers the requests."""

    def __init__(self, turns: Sequence[str], sandbox: ToySandbox, tools: Sequence[Tool]) -> None:
        self.turns = turns
        self.sandbox = sandbox
        self.tools = tools
        self.requests: list[GenerateRequest] = []
        self.renderer = ToyRenderer()
        self.engine = ScriptedEngine("toy", self._policy, capacity=EngineCapacity(257, 16, 2048))

    def _policy(self, prompt: list[int], version: int, source: random.Random) -> list[int]:
        return [*self.turns[prompt.count(START) // 2 - 1].encode(), END]

    async def generate(self, request: GenerateRequest):
        self.requests.append(request)
        return await self.engine.generate(request)

    async def run(self, *, problem="p", generate=None, prompt_ids=None, listen=None, stop=None, begun=None, **limits):
        await self.engine.start()
        settings = {
            "context_tokens": 2048,
            "max_response_tokens": 2000,
            "max_turns": 6,
            "max_calls_per_turn": 4,
            "tool_response_chars": 200,
        }
        return await run_rollout(
            RolloutTask("rl", 3, "g7", 1, "p1", problem, "42", u=0.5, prompt_ids=prompt_ids),
            generate=generate or self.generate,
            sandbox=self.sandbox,
            renderer=self.renderer,
            tools=self.tools,
            limits=TurnLimits(**{**settings, **limits}),
            listen=listen,
            stop=stop,
            begun=begun,
        )


@pytest.fixture
def sandbox() -> ToySandbox:
    return ToySandbox()


@pytest.fixture
def converse(sandbox: ToySandbox) -> Callable[..., Conversation]:
    return lambda *turns, tools=PYTHON: Conversation(turns, sandbox, tools)


@pytest.fixture
def call() -> Callable[..., str]:
    """A well-formed call of the Python tool, short enough for small budgets."""

    def write(code: str, stdin: str = "") -> str:
        arguments = {"code": code, "input": stdin}
        return f"<tool_call>{json.dumps({'name': PYTHON_TOOL.name, 'arguments': arguments})}</tool_call>"

    return write


@pytest.fixture(scope="session")
def rows() -> dict[str, dict[str, object]]:
    """The shared cases by their id."""
    return {row["id"]: row for row in map(json.loads, CASES.read_text("utf-8").splitlines())}
