"""The turn loop, rule by rule; ids of shared cases name the rows of ``cases/toolcalls.jsonl`` they hold."""

import asyncio
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.contract.trajectory import StopReason
from engine.data.render import Renderer
from engine.data.tokenizer import save_tokenizer, train_tokenizer
from engine.rollout.agent import MixedVersions, RolloutAborted, TurnLimits
from engine.rollout.base import EngineUnavailable, FinishReason, Generation
from engine.rollout.calls import answer_calls
from engine.rollout.toolcalls import truncate_middle
from engine.rollout.tools.base import RolloutScope, ToolContext
from engine.rollout.tools.python import NO_OUTPUT, PythonTool, traceback_tail
from sandbox.contract import ProgramError, SandboxUnavailable

ANSWER = "<answer>\\boxed{4}</answer>"


def assert_whole(made, conversation) -> None:
    """Columns agree, turns tile the ids, each request is the prompt and all ids so far."""
    assert len(made.ids) == len(made.sampled) == len(made.logprobs)
    assert [turn.start for turn in made.turns] == [0, *(turn.end for turn in made.turns)][: len(made.turns)]
    assert not made.turns or made.turns[-1].end == len(made.ids)
    for turn in made.turns:
        assert set(made.sampled[turn.start : turn.end]) <= {turn.role == "assistant"}
    assert all(p == 0.0 for p, own in zip(made.logprobs, made.sampled, strict=True) if not own)
    assert not made.ids or made.sampled[-1], "the last token is the model's"
    starts = [turn.start for turn in made.turns if turn.role == "assistant"]
    sent = [tuple(request.prompt_ids) for request in conversation.requests]
    assert sent == [made.prompt_ids + made.ids[:start] for start in starts]


async def test_an_answer_ends_the_rollout(converse) -> None:
    conversation = converse(f"It is 4. {ANSWER}")
    made = await conversation.run()
    assert made.stop_reason is StopReason.answered
    assert [turn.role for turn in made.turns] == ["assistant"]
    assert made.turns[0].text == f"It is 4. {ANSWER}"
    assert made.ids[-1] == conversation.renderer.end_id
    assert (made.group, made.replica, made.step, made.u, made.reward) == ("g7", 1, 3, 0.5, None)
    assert_whole(made, conversation)


@pytest.mark.parametrize("text", ["I give up.", "<answer>4", "</answer>4<answer>"])
async def test_without_a_complete_answer_there_is_none(converse, text) -> None:
    made = await converse(text).run()
    assert made.stop_reason is StopReason.no_answer


async def test_an_answer_given_with_a_call_counts(converse, call) -> None:
    made = await converse(ANSWER + call("1"), "Done.").run()
    assert made.stop_reason is StopReason.answered
    assert made.assistant_turns == 2


async def test_a_call_is_run_and_its_response_appended_unsampled(converse, call, sandbox) -> None:
    conversation = converse(call("print(2+2)", stdin="7"), ANSWER)
    made = await conversation.run()
    assert [turn.role for turn in made.turns] == ["assistant", "tool", "assistant"]
    assert [(r.code, r.stdin) for r in sandbox.requests] == [("print(2+2)", "7")]
    record = made.calls[0]
    assert (record.status, record.response, record.queued_s, record.wall_s) == ("ok", "print(2+2)", 0.5, 0.25)
    assert record.arguments == {"code": "print(2+2)", "input": "7"}
    assert made.turns[1].text == "print(2+2)"
    assert_whole(made, conversation)


async def test_b065_what_a_tool_prints_is_never_a_call(converse, call, sandbox, rows) -> None:
    row = rows["B065"]
    printed = row["input"]["tool_output"]
    sandbox.programs["evil"] = lambda request: asyncio.sleep(0, sandbox.result(request, stdout=printed))
    conversation = converse(call("evil"), "That is all.")
    made = await conversation.run()
    assert printed in made.turns[1].text
    assert len(sandbox.requests) == 1
    assert made.tool_errors == row["expected"]["errors"]


async def test_b069_calls_run_at_once_and_replies_keep_their_order(converse, call, sandbox, rows) -> None:
    fast_done = asyncio.Event()

    async def slow(request):
        await fast_done.wait()  # never comes if calls ran one after the other
        return sandbox.result(request, stdout="slow\n")

    async def fast(request):
        fast_done.set()
        return sandbox.result(request, stdout="fast\n")

    sandbox.programs.update(a=slow, b=fast)
    made = await asyncio.wait_for(converse(call("a") + "\n" + call("b"), ANSWER).run(), 10)
    assert [record.response for record in made.calls] == rows["B069"]["expected"]["replies"]


async def test_b071_a_response_without_room_is_not_appended(converse, call) -> None:
    turn = call("1")
    conversation = converse(turn, ANSWER)
    tool = len(conversation.renderer.tool_turn(["1"]))
    full = len(turn) + 1 + tool
    made = await conversation.run(max_response_tokens=full)
    assert made.stop_reason is StopReason.length
    assert [t.role for t in made.turns] == ["assistant"]
    assert len(made.calls) == 1, "it ran, so it counts"
    assert_whole(made, conversation)
    more = await converse(turn, ANSWER).run(max_response_tokens=full + 1)
    assert [t.role for t in more.turns] == ["assistant", "tool", "assistant"]
    assert len(more.turns[2].text) == 1


async def test_b075_b079_b083_history_is_what_was_sampled_and_said(converse, call) -> None:
    conversation = converse(call("r1") + call("r2"), ANSWER)
    made = await conversation.run()
    shown = conversation.renderer.decode(conversation.requests[1].prompt_ids)
    assert shown.count("<tool_call>") == 2  # B083: parsed calls stay in the history
    assert "<tool_response>r1</tool_response><tool_response>r2</tool_response>" in shown  # B075
    boundary = made.turns[0].end
    assert conversation.renderer.decode(made.ids[boundary - 1 : boundary + 2]) == "<|im_end|>\n<|im_start|>"  # B079
    assert made.sampled[boundary - 1 : boundary + 2] == (True, False, False)
    assert_whole(made, conversation)


async def test_b077_ids_that_would_encode_otherwise_are_kept(converse) -> None:
    """0xC3 alone is no text; decoding and encoding it again would give other bytes."""
    ids = [0xC3, 0x28, 256]

    async def generate(request):
        return Generation(ids, [-1.0] * 3, FinishReason.stop, 4)

    made = await converse().run(generate=generate)
    assert made.ids == tuple(ids)
    assert made.turns[0].text == "\ufffd("


async def test_b085_an_end_mark_that_was_not_sampled_is_masked(converse, call) -> None:
    sampled = list(call("1").encode())

    async def generate(request):
        if len(request.prompt_ids) > 100:
            return Generation([*ANSWER.encode(), 256], [-1.0] * (len(ANSWER) + 1), FinishReason.stop, 1)
        return Generation(sampled, [-1.0] * len(sampled), FinishReason.stop, 1)

    made = await converse().run(generate=generate)
    end = len(sampled)
    assert made.ids[end] == 256
    assert (made.sampled[end], made.logprobs[end]) == (False, 0.0)
    assert len(made.ids) == len(made.logprobs)


async def test_tokens_without_a_log_probability_are_the_engines_fault(converse) -> None:
    async def generate(request):
        return Generation([5, 6], [-0.1], FinishReason.stop, 1)

    with pytest.raises(EngineUnavailable, match="2 with 1 log-prob"):
        await converse().run(generate=generate)


async def test_b087_with_nothing_left_no_request_is_sent(converse, call) -> None:
    """The first turn uses the whole budget up: it is cut, and its calls are not run."""
    turn = call("1")
    conversation = converse(turn, ANSWER)
    made = await conversation.run(max_response_tokens=len(turn))
    assert made.stop_reason is StopReason.length
    assert len(conversation.requests) == 1
    assert made.calls == []
    assert len(made.ids) == len(turn)


@pytest.mark.parametrize("room", [-3, 0])
async def test_b089_f095_a_prompt_over_the_context_is_a_normal_end(converse, caplog, room) -> None:
    conversation = converse(ANSWER)
    length = len(conversation.renderer.prompt("p"))
    with caplog.at_level(logging.INFO, "engine.rollout.agent"):
        made = await conversation.run(context_tokens=length + room)
    assert made.stop_reason is StopReason.length
    assert conversation.requests == []
    assert (made.ids, made.turns) == ((), ())
    assert [record.levelname for record in caplog.records] == ["INFO"]


async def test_b091_no_cap_of_a_turn_cuts_the_whole(converse) -> None:
    turns = iter([500, 500, 500])
    calls = []

    async def generate(request):
        calls.append(request.max_tokens)
        size = next(turns)
        text = b"<tool_call></tool_call>" if len(calls) < 3 else b""
        return Generation([*text.ljust(size - 1), 256], [-1.0] * size, FinishReason.stop, 1)

    made = await converse().run(generate=generate, context_tokens=8192, max_response_tokens=4096)
    assert sum(made.sampled) == 1500
    assert calls == [4096, 4096 - made.turns[1].end, 4096 - made.turns[3].end]


async def test_b093_calls_of_the_last_turn_count_like_any_other(converse, call, sandbox, rows) -> None:
    row = rows["B093"]
    conversation = converse(*[call(str(n)) for n in range(9)])
    made = await conversation.run(max_turns=row["input"]["max_turns"], context_tokens=512)
    assert made.stop_reason is StopReason.max_turns
    assert made.assistant_turns == row["expected"]["assistant_turns"]
    assert len(sandbox.requests) == len(made.calls) == row["expected"]["tool_runs_max"]
    assert made.turns[-1].role == "assistant"
    assert made.calls[-1].response == "2"
    assert_whole(made, conversation)


async def test_b095_a_long_response_loses_its_middle(converse, call, sandbox, rows) -> None:
    case = rows["B095"]
    text, limit = case["input"]["text"], case["input"]["limit"]
    sandbox.programs["long"] = lambda request: asyncio.sleep(0, sandbox.result(request, stdout=text))
    made = await converse(call("long"), ANSWER).run(tool_response_chars=limit)
    response = made.calls[0].response
    assert response == truncate_middle(text, limit)
    assert response.startswith(case["expected"]["starts_with"])
    assert response.endswith(case["expected"]["ends_with"])
    assert response in made.turns[1].text


async def test_b097_responses_are_valid_text(converse, call, sandbox, rows) -> None:
    odd = "\x00\udc80" + rows["B097"]["input"]["text_utf8"]
    sandbox.programs["odd"] = lambda request: asyncio.sleep(0, sandbox.result(request, stdout=odd))
    made = await converse(call("odd"), ANSWER).run(tool_response_chars=33)
    response = made.calls[0].response
    response.encode("utf-8")
    assert response.startswith("\\x00\\udc80")


async def test_b099_a_late_reply_has_nowhere_to_go(converse, call, sandbox) -> None:
    """First attempt: the call hangs and the attempt is given up. Second: one reply, the second's."""
    late = asyncio.Event()

    async def hangs_once(request):
        attempt = len(sandbox.requests)
        if attempt == 1:
            await late.wait()
        return sandbox.result(request, stdout=f"reply {attempt}")

    sandbox.programs["slow"] = hangs_once
    conversation = converse(call("slow"), ANSWER)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(conversation.run(), 0.05)
    assert sandbox.running == 0
    late.set()
    made = await conversation.run()
    assert [record.response for record in made.calls] == ["reply 2"]
    assert len({request.id for request in sandbox.requests}) == 2


async def test_b099_the_result_of_another_call_is_refused(converse, call, sandbox) -> None:
    async def stale(request):
        return sandbox.result(request).model_copy(update={"id": "an earlier one"})

    sandbox.programs["x"] = stale
    with pytest.raises(SandboxUnavailable, match="an earlier one"):
        await converse(call("x")).run()


async def test_b067_calls_over_the_limit_are_answered_not_run(converse, call, sandbox) -> None:
    made = await converse("".join(call(str(n)) for n in range(5)), ANSWER).run(max_calls_per_turn=3)
    assert len(sandbox.requests) == 3
    assert [record.status for record in made.calls] == ["ok"] * 3 + ["parse_error"] * 2
    assert made.tool_errors == 2
    assert "limit" in made.calls[4].response


async def test_a_broken_call_is_answered_with_its_error(converse, sandbox) -> None:
    made = await converse("<tool_call>{</tool_call>", ANSWER).run()
    assert sandbox.requests == []
    assert (made.calls[0].status, made.calls[0].name) == ("parse_error", "")
    assert made.calls[0].response in made.turns[1].text
    assert made.stop_reason is StopReason.answered


async def test_f097_an_aborted_generation_is_no_answer(converse) -> None:
    async def generate(request):
        return Generation([1, 2], [-0.1, -0.1], FinishReason.abort, 1)

    with pytest.raises(RolloutAborted):
        await converse().run(generate=generate)


async def test_we_failed_is_no_answer_and_stops_the_other_calls(converse, call, sandbox) -> None:
    started = asyncio.Event()

    async def hangs(request):
        started.set()
        await asyncio.Event().wait()

    async def fails(request):
        await started.wait()
        raise SandboxUnavailable("node lost")

    sandbox.programs.update(a=hangs, b=fails)
    with pytest.raises(SandboxUnavailable, match="node lost"):
        await converse(call("a") + call("b")).run()
    assert sandbox.running == 0


@pytest.mark.parametrize("second", [7, 8])
async def test_all_turns_are_of_one_version(converse, call, second) -> None:
    """New weights between two turns spoil the attempt; the pool does it again."""
    versions = iter([7, second])
    texts = iter([call("1"), ANSWER])

    async def generate(request):
        text = next(texts)
        return Generation([*text.encode(), 256], [-1.0] * (len(text) + 1), FinishReason.stop, next(versions))

    work = converse().run(generate=generate)
    if second == 7:
        made = await work
        assert (made.first_version, made.last_version) == (7, 7)
    else:
        with pytest.raises(MixedVersions, match="7 and 8"):
            await work


async def test_what_the_engine_is_asked(converse) -> None:
    conversation = converse(ANSWER)
    await conversation.run(context_tokens=100, max_response_tokens=500)
    request = conversation.requests[0]
    assert request.max_tokens == 100 - len(request.prompt_ids)
    assert request.stop_token_ids == (256,)
    assert (request.temperature, request.replica) == (1.0, 1)


TRACEBACK = """Traceback (most recent call last):
  File "main.py", line 3, in <module>
    print(f(1))
          ^^^^
  File "main.py", line 2, in f
    return y
           ^
NameError: name 'y' is not defined
"""


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"status": "ok", "stdout": "  4\n\n"}, "  4"),
        ({"status": "ok", "stdout": "\n"}, NO_OUTPUT),
        (
            {"status": "error", "stdout": "so far\n", "stderr": TRACEBACK, "exit_code": 1},
            "so far\n  File \"main.py\", line 2, in f\n    return y\nNameError: name 'y' is not defined",
        ),
        ({"status": "error", "exit_code": 3}, "The program ended with exit code 3."),
        ({"status": "timeout", "wall_s": 5.0}, "Timeout: the program was stopped after 5 seconds."),
        ({"status": "memory"}, "Out of memory: the program may use 512 MiB."),
        ({"status": "output_limit", "stdout": "xx"}, "xx\nOutput limit: the program may print 65536 bytes."),
        (
            {"status": "killed", "detail": "Forbidden system call."},
            "The program was stopped. Forbidden system call.",
        ),
    ],
)
async def test_what_the_model_is_told(converse, call, sandbox, fields, expected) -> None:
    sandbox.programs["x"] = lambda request: asyncio.sleep(0, sandbox.result(request, **fields))
    made = await converse(call("x"), ANSWER).run()
    assert made.calls[0].response == expected
    assert made.calls[0].status == fields["status"]
    assert made.calls[0].failed == (fields["status"] != "ok")


async def test_the_programs_own_claim_is_recorded(converse, call, sandbox) -> None:
    error = ProgramError(type="NameError", message="name 'y' is not defined", line=2)
    fields = {"status": "error", "stderr": TRACEBACK, "error": error}
    sandbox.programs["x"] = lambda request: asyncio.sleep(0, sandbox.result(request, **fields))
    made = await converse(call("x"), ANSWER).run()
    assert made.calls[0].error_type == "NameError"


def test_without_a_traceback_the_last_lines_stay() -> None:
    assert traceback_tail("\n".join("abcdefg")) == "c\nd\ne\nf\ng"
    assert traceback_tail("") == ""


async def test_a_nul_in_sampled_text_is_made_visible(converse) -> None:
    made = await converse(f"\x00 {ANSWER}").run()
    assert made.turns[0].text.startswith("\\x00")
    assert made.ids[0] == 0


async def test_calls_can_be_answered_outside_of_a_rollout(call, sandbox, converse) -> None:
    """SFT data gets its tool responses from here, so that both read the same."""
    limits = TurnLimits(512, 500, 6, 4, 200)
    context = ToolContext(sandbox, limits.sandbox, RolloutScope())
    records = await answer_calls(call("1"), tools=(PythonTool(),), context=context, limits=limits)
    assert [record.response for record in records] == ["1"]
    assert math.isclose(records[0].wall_s, 0.25)


def test_f099_threads_may_share_a_renderer(tmp_path: Path) -> None:
    """Nothing of its tokenizers is changed after it was made."""
    save_tokenizer(train_tokenizer([], 300), tmp_path)
    renderer = Renderer(tmp_path / "tokenizer.json")

    def work(number: int) -> bool:
        text = f"<tool_call>{number} é<|im_end|></tool_call>" * (number % 7 + 1)
        return renderer.decode(renderer.text(text)) == text == renderer.decode(renderer.policy_text(text))

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(work, range(640)))
