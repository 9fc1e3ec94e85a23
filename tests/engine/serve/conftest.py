"""A server without a model: a scripted engine that does what the user says, a sandbox of functions, a real door.

What the model does is in the last user message: ``call CODE`` calls the Python tool and answers with what it printed,
``twice CODE`` makes two calls in a turn, anything else is said back. Tests cannot import this file (importlib mode), so
what they need are fixtures.
"""

import asyncio
import io
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine.contract.stages import PlantedErrors
from engine.data.arithmetic import make_problems
from engine.data.protocol import answer, tool_call
from engine.data.render import Renderer
from engine.data.sft_trajectories import sample_texts
from engine.data.tokenizer import save_tokenizer, train_tokenizer
from engine.rollout.agent import TurnLimits
from engine.rollout.base import EngineCapacity, GenerateRequest
from engine.rollout.pool import EnginePool
from engine.rollout.scripted_engine import ScriptedEngine
from engine.rollout.tools.python import PythonTool
from engine.serve.chat import Agent, Chat
from engine.serve.door import Door
from engine.serve.opening import bound, url
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, SandboxUnavailable
from sandbox.doors.http_tokens import Tokens

CONTEXT = 1024
USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>\n", re.DOTALL)
RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
MODEL = "toy"


class ToySandbox:
    """Prints the code; ``hang`` never ends, ``down`` and ``broken`` are failures of ours."""

    def __init__(self) -> None:
        self.running = 0
        self.requests: list[ExecRequest] = []
        self.began = asyncio.Event()

    async def execute(self, request: ExecRequest) -> ExecResult:
        self.requests.append(request)
        self.running += 1
        self.began.set()
        try:
            if request.code == "hang":
                await asyncio.Event().wait()
            if request.code == "down":
                raise SandboxUnavailable("the node is gone: /secret/place")
            return ExecResult(
                id=request.id,
                status=ExecStatus.OK,
                stdout=request.code,
                stderr="",
                exit_code=0,
                wall_s=0.25,
                queued_s=0.0,
                error=None,
            )
        finally:
            self.running -= 1

    async def end_session(self, session: str) -> None:
        raise AssertionError("no session was begun")


def next_turn(text: str) -> str:
    """What the model writes after a rendered conversation."""
    said = USER.findall(text)[-1]
    if printed := RESPONSE.findall(said):
        return answer("".join(printed))
    match said.split(" ", 1):
        case ["call", code]:
            return f"<reason>é漢🙂</reason>{tool_call(code)}"
        case ["twice", code]:
            return tool_call(code) + tool_call(code)
    return said


class Server:
    """An open door, and a client at it."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.requests: list[GenerateRequest] = []
        self.free = asyncio.Event()
        self.free.set()
        self.sandbox = ToySandbox()
        capacity = EngineCapacity(kv_blocks=8 * CONTEXT, block_tokens=16, max_model_tokens=CONTEXT)
        self.engine = ScriptedEngine("toy-0", self._policy, capacity=capacity, pace=self._pace)
        self.pool = EnginePool([self.engine], retries=1)
        self.url = ""

    def _policy(self, prompt: list[int], version: int, source: random.Random) -> list[int]:
        return [*self.renderer.policy_text(next_turn(self.renderer.decode(prompt))), self.renderer.end_id]

    async def _pace(self, request: GenerateRequest) -> None:
        self.requests.append(request)
        await self.free.wait()

    def agent(self, limits: TurnLimits) -> Agent:
        return Agent(MODEL, self.pool, self.renderer, (PythonTool(),), self.sandbox, limits)

    @asynccontextmanager
    async def asked(self, method: str, path: str, body: Any = None, **headers: str) -> AsyncIterator[Any]:
        """A request as any program would send it."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Content-Type": "application/json", **headers}
        async with (
            aiohttp.ClientSession() as http,
            http.request(method, self.url.rstrip("/") + path, data=body and io.BytesIO(raw), headers=given) as response,
        ):
            yield response

    async def chat(self, said: str | Sequence[dict[str, Any]], **fields: Any) -> tuple[int, dict[str, Any]]:
        """Status and body of one answer."""
        async with self.asked("POST", "/v1/chat/completions", self.body(said, **fields)) as response:
            return response.status, await response.json()

    async def stream(self, said: str, **fields: Any) -> list[Any]:
        """The data of all events of one answer; ``[DONE]`` as it is."""
        async with self.asked("POST", "/v1/chat/completions", self.body(said, stream=True, **fields)) as response:
            assert response.status == 200, await response.text()
            events = (await response.text()).split("\n\n")
        assert events.pop() == ""
        return [data if data == "[DONE]" else json.loads(data) for data in (e.removeprefix("data: ") for e in events)]

    @staticmethod
    def body(said: str | Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else list(said)
        return {"messages": messages, **fields}


Opening = Callable[..., Any]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer with the protocol's tags."""
    folder = tmp_path_factory.mktemp("tokenizer")
    source = random.Random(0)
    save_tokenizer(
        train_tokenizer(sample_texts(source, make_problems(source, 50, {1: 1.0}), PlantedErrors()), 400), folder
    )
    return folder / "tokenizer.json"


@pytest.fixture
def opening(tokenizer: Path) -> Opening:
    """Opens a server: ``opening(queue=..., tokens=..., **limits)``."""

    @asynccontextmanager
    async def opened(*, queue: int = 8, tokens: Tokens | None = None, **limits: int) -> AsyncIterator[Server]:
        usual = {"max_response_tokens": 800, "max_turns": 4, "max_calls_per_turn": 4, "tool_response_chars": 200}
        async with AsyncExitStack() as stack:
            server = Server(Renderer(tokenizer))
            await server.pool.start()
            stack.push_async_callback(server.pool.close)
            agent = server.agent(TurnLimits(CONTEXT, **{**usual, **limits}))
            door = Door(Chat(agent, most_in_flight=queue), tokens)
            listener = bound("127.0.0.1", 0, tokens)
            await door.open(listener)
            stack.push_async_callback(door.close)
            server.url = url(listener)
            yield server

    return opened


@pytest.fixture
async def server(opening: Opening) -> AsyncIterator[Server]:
    async with opening() as opened:
        yield opened


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], Any]:
    """Waits for a condition."""

    async def waited(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)

    return waited
