"""Turns in chunks: nothing of a rollout depends on where it was cut, halted and gone on with, or who listened."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.contract.trajectory import StopReason
from engine.rollout.agent import Halted, MixedVersions
from engine.rollout.base import FinishReason, Generation
from engine.rollout.toolcalls import CallError, ToolCall
from engine.rollout.tools.base import ToolOutcome
from engine.rollout.tools.python import PYTHON_SESSION_TOOL

ANSWER = "<answer>\\boxed{4}</answer>"
BROKEN = "<tool_call>{</tool_call>"


class Heard:
    """Keeps what a listener is told."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.told: list[object] = []

    def sampled(self, ids) -> None:
        self.ids += ids
        self.told.append(len(ids))

    def called(self, calls) -> None:
        self.told.append([type(call) for call in calls])

    def answered(self, records) -> None:
        self.told.append([record.response for record in records])


class Halts:
    """A conversation whose rollout is asked to halt after every ``every``-th request, with other weights after each."""

    def __init__(self, conversation, every: int, versions=(0,)) -> None:
        self.conversation = conversation
        self.every = every
        self.versions = list(versions)
        self.requests = 0
        self.stop = asyncio.Event()

    async def generate(self, request):
        made = await self.conversation.generate(request)
        self.requests += 1
        if self.requests % self.every == 0:
            self.stop.set()
        return Generation(made.ids, made.logprobs, made.finish, self.versions[0])

    async def run(self, **limits):
        """To its end, over all halts; and how often it halted."""
        begun, halts = None, 0
        while True:
            self.stop.clear()
            try:
                made = await self.conversation.run(generate=self.generate, stop=self.stop, begun=begun, **limits)
            except Halted as halted:
                begun, halts = halted.begun, halts + 1
                self.versions = self.versions[1:] or self.versions
            else:
                return made, halts


def comparable(made):
    return made.model_dump(exclude={"seconds", "first_version", "last_version", "policy_steps"})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(st.sampled_from(["1", "22", "broken", "two", "cut"]), max_size=4),
    chunk=st.integers(1, 90),
    every=st.integers(1, 5),
    budget=st.integers(1, 700),
    max_turns=st.integers(1, 5),
)
def test_no_cut_changes_a_rollout(converse, call, turns, chunk, every, budget, max_turns) -> None:
    """Chunks and halts come anywhere, calls and the budget's end too: as without, ids, mask and all."""
    texts = {
        "1": call("1"),
        "22": "é" + call("22"),
        "broken": BROKEN,
        "two": call("a") + call("b"),
        "cut": "<tool_call>",
    }
    said = [*(texts[turn] for turn in turns), ANSWER]
    limits = {"max_response_tokens": budget, "max_turns": max_turns}

    async def both():
        plain, halting = await converse(*said).run(**limits), Halts(converse(*said), every)
        return plain, *(await halting.run(chunk_tokens=chunk, **limits)), halting.requests

    plain, cut, halts, requests = asyncio.run(both())
    assert comparable(cut) == comparable(plain)
    assert len(cut.ids) == len(cut.sampled) == len(cut.logprobs)
    assert all(p == 0.0 for p, own in zip(cut.logprobs, cut.sampled, strict=True) if not own)
    assert (cut.turns[-1].end if cut.turns else 0) == len(cut.ids)
    assert halts == max(0, requests - 1) // every


async def test_a_turn_is_one_request_unless_chunks_are_wanted(converse) -> None:
    whole, cut = converse(ANSWER), converse(ANSWER)
    made = await whole.run()
    await cut.run(chunk_tokens=10)
    assert len(whole.requests) == 1
    assert [request.max_tokens for request in cut.requests] == [10, 10, 10]
    assert [request.turn_tokens for request in cut.requests] == [0, 10, 20]
    assert cut.requests[2].prompt_ids == [*made.prompt_ids, *made.ids[:20]]


async def test_an_engine_that_gives_less_than_asked_has_no_room_left(converse) -> None:
    async def generate(request):
        return Generation([7, 7, 7], [-1.0] * 3, FinishReason.length, 0)

    made = await converse().run(generate=generate, chunk_tokens=4)
    assert (made.stop_reason, len(made.ids)) == (StopReason.length, 3)


async def test_asked_before_it_began_a_rollout_samples_nothing(converse) -> None:
    stop = asyncio.Event()
    stop.set()
    conversation = converse(ANSWER)
    with pytest.raises(Halted) as halted:
        await conversation.run(stop=stop)
    assert conversation.requests == []
    assert halted.value.begun.prompt_ids == tuple(conversation.renderer.prompt("p"))
    assert halted.value.begun.ids == ()


async def test_a_halted_rollout_goes_on_by_other_weights_and_says_which_sampled_what(converse, call) -> None:
    """Halted in the middle of its first turn and after its tool call: three versions, each with its first position."""
    turn = call("1")
    made, halts = await Halts(converse(turn, ANSWER), 1, versions=[3, 4, 6]).run(chunk_tokens=len(turn))
    assert halts == 2
    assert [start for start, _ in made.policy_steps] == [0, len(turn), made.turns[1].end]
    assert [version for _, version in made.policy_steps] == [3, 4, 6]
    assert (made.first_version, made.last_version) == (3, 6)


async def test_one_policy_is_not_worth_a_list(converse) -> None:
    made, halts = await Halts(converse(ANSWER), 1).run(chunk_tokens=10)
    assert halts == 2
    assert made.policy_steps == ()


async def test_between_halts_all_is_of_one_version(converse) -> None:
    halts = Halts(converse(ANSWER), 100)
    plain = halts.generate

    async def another_version_each_time(request):
        made = await plain(request)
        return Generation(made.ids, made.logprobs, made.finish, halts.requests)

    with pytest.raises(MixedVersions, match="1 and 2"):
        await halts.conversation.run(generate=another_version_each_time, chunk_tokens=10)


class Notebook:
    """A tool that keeps something for the rollout."""

    spec = PYTHON_SESSION_TOOL

    async def call(self, arguments, context):
        @asynccontextmanager
        async def opened():
            yield object()

        await context.scope.keep(self, opened)
        return ToolOutcome("kept")


async def test_a_rollout_whose_tool_keeps_something_is_not_halted(converse) -> None:
    """It would lose that. Before its first call it can be."""
    cell = '<tool_call>{"name": "execute_python_cell", "arguments": {"code": "x = 1"}}</tool_call>'
    made, halts = await Halts(converse(cell, ANSWER, tools=(Notebook(),)), 1).run(chunk_tokens=60)
    assert len(cell) > 60
    assert halts == 1
    assert made.stop_reason is StopReason.answered


async def test_a_listener_hears_all_that_is_sampled_and_each_turns_calls(converse, call) -> None:
    heard = Heard()
    conversation = converse(call("1") + BROKEN, ANSWER)
    made = await conversation.run(listen=heard)
    assert heard.ids == [token for token, own in zip(made.ids, made.sampled, strict=True) if own]
    first, last = (turn.end - turn.start for turn in made.turns if turn.role == "assistant")
    assert heard.told == [first, [ToolCall, CallError], [record.response for record in made.calls], last]


async def test_a_prompt_can_be_given_as_ids(converse) -> None:
    conversation = converse(ANSWER)
    made = await conversation.run(prompt_ids=(257, 256, 257, 10))
    assert made.prompt_ids == (257, 256, 257, 10)
    assert conversation.requests[0].prompt_ids == [257, 256, 257, 10]


async def test_an_engine_that_tells_no_log_probabilities_leaves_them_at_nothing(converse) -> None:
    async def generate(request):
        return Generation([*ANSWER.encode(), 256], None, FinishReason.stop, 0)

    made = await converse().run(generate=generate)
    assert set(made.logprobs) == {0.0}
    assert len(made.logprobs) == len(made.ids)


async def test_megabytes_of_output_are_cut_before_anybody_looks_at_them(converse, call, sandbox) -> None:
    """Reading them all would take the event loop's thread more than a second."""
    noisy = "\x00a\n" * 4_000_000
    came = {"stdout": noisy, "stderr": noisy}
    sandbox.programs["loud"] = lambda request: asyncio.sleep(0, sandbox.result(request, "error", **came))
    began = time.thread_time()
    made = await converse(call("loud"), ANSWER).run(tool_response_chars=200)
    assert time.thread_time() - began < 0.3
    assert len(made.calls[0].response) < 300
    assert made.calls[0].response.startswith("\\x00a\n\\x00a\n")


async def test_tags_without_end_hold_nobody_up(converse) -> None:
    tags = b"<answer>" * 20_000

    async def generate(request):
        return Generation([*tags, 256], [-1.0] * (len(tags) + 1), FinishReason.stop, 0)

    began = time.thread_time()
    made = await converse().run(generate=generate, context_tokens=200_000, max_response_tokens=199_000)
    assert time.thread_time() - began < 1.0
    assert made.stop_reason is StopReason.no_answer


async def test_a_turn_of_nothing_but_calls_holds_nobody_up(converse) -> None:
    """Thousands of them, all broken: they are read aside, and those over the limit are not rendered for nothing."""
    calls = b"<tool_call>{" * 12_000

    async def generate(request):
        return Generation([*calls, 256], [-1.0] * (len(calls) + 1), FinishReason.stop, 0)

    began = time.thread_time()
    made = await converse().run(generate=generate, context_tokens=150_000, max_response_tokens=149_000)
    assert time.thread_time() - began < 1.0
    assert made.tool_errors == len(made.calls) == 12_000
    assert made.stop_reason is StopReason.length
