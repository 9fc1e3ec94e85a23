"""An answer while it is made: pieces of a stream in the order in which things happen.

Text comes a few tokens at a time; the calls of a turn are told when they begin to run, their results when all of them
are there. Leaves out how pieces travel: ``door.py``.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from engine.contract.base import visible
from engine.contract.trajectory import ToolCallRecord, Trajectory
from engine.rollout.toolcalls import CallError, ToolCall
from engine.serve.answers import Heading, finish_reason, last_text, summary
from engine.serve.chat import Chat
from engine.serve.text import Characters, UpToStop, cut_at
from engine.serve.wire import ChatRequest

CHUNK_TOKENS = 4
"""Tokens a piece. Each piece is a request to the engine."""

Told = asyncio.Queue[dict[str, Any] | None]


class Teller:
    """Follows one rollout and tells it, piece by piece."""

    def __init__(self, told: Told, heading: Heading, index: int, chat: Chat, stops: Sequence[str]) -> None:
        self.begun = False
        self._told = told
        self._heading = heading
        self._index = index
        self._renderer = chat.agent.renderer
        self._stops = stops
        self._turn = 0
        self._begin_turn()

    def _begin_turn(self) -> None:
        self._characters = Characters(self._renderer.decode)
        self._up_to_stop = UpToStop(self._stops)

    def sampled(self, ids: Sequence[int]) -> None:
        if not self.begun:
            self.begun = True
            self._tell({"role": "assistant", "content": ""})
        own = [token for token in ids if token != self._renderer.end_id]
        self._tell_text(self._up_to_stop.add(visible(self._characters.add(own))))

    def called(self, calls: Sequence[ToolCall | CallError]) -> None:
        self._end_turn()
        told = [{"name": "", "error": c.text} if isinstance(c, CallError) else _call(c) for c in calls]
        self._tell({}, starloom={"event": "calls", "turn": self._turn, "calls": told})

    def answered(self, records: Sequence[ToolCallRecord]) -> None:
        results = [record.model_dump() for record in records]
        self._tell({}, starloom={"event": "results", "turn": self._turn, "results": results})
        self._turn += 1
        self._begin_turn()

    def finished(self, made: Trajectory) -> None:
        self._end_turn()
        ended = {"event": "finished", **summary(made), "content": cut_at(last_text(made), self._stops)}
        self._tell({}, finish=finish_reason(made), starloom=ended)

    def _end_turn(self) -> None:
        self._tell_text(self._up_to_stop.add(visible(self._characters.rest())))
        self._tell_text(self._up_to_stop.rest())
        self._begin_turn()

    def _tell_text(self, text: str) -> None:
        if text:
            self._tell({"content": text})

    def _tell(self, delta: dict[str, str], **more: Any) -> None:
        self._told.put_nowait(self._heading.piece(self._index, delta, **more))


def _call(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


async def pieces(chat: Chat, asked: ChatRequest) -> AsyncGenerator[dict[str, Any], None]:
    """The stream of an answer. Raises ``ApiError``, before the first piece or in the middle. Close it to stop."""
    told: Told = asyncio.Queue()
    heading = Heading(chat.agent.name)
    tellers = [Teller(told, heading, index, chat, asked.stop) for index in range(asked.n)]
    sampling = asyncio.ensure_future(chat.sample(asked, followers=tellers, chunk_tokens=CHUNK_TOKENS))
    sampling.add_done_callback(lambda _: told.put_nowait(None))
    try:
        while (piece := await told.get()) is not None:
            yield piece
        made = await sampling
        if asked.stream_options.include_usage:
            yield heading.used(made)
    finally:
        sampling.cancel()
        await asyncio.gather(sampling, return_exceptions=True)
