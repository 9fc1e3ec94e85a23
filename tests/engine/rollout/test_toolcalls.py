"""Tool calls: every row of ``cases/toolcalls.jsonl`` that parsing decides, then the rules in words."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.rollout.toolcalls import CallError, ToolCall, parse_tool_calls, truncate_middle
from engine.rollout.tools.python import PYTHON_TOOL
from engine.rollout.tools.spec import ToolSpec

CASES = Path(__file__).parents[2] / "cases" / "toolcalls.jsonl"
ROWS: dict[str, dict[str, Any]] = {row["id"]: row for row in map(json.loads, CASES.read_text("utf-8").splitlines())}

# A row that is neither parsed nor cut here must be named here, with who answers for it.
HANDLED_ELSEWHERE = {
    "B065": "turn loop: tool output is never passed to the parser",
    "B069": "turn loop: replies in order of calls",
    "B071": "turn loop: response budget and mask",
    "B073": "packing: padding mask",
    "B075": "rendering: consecutive tool replies",
    "B077": "turn loop: ids as sampled",
    "B079": "rendering: newline between turns",
    "B081": "rendering: rollout and trainer agree",
    "B083": "rendering: a parsed call stays in the history",
    "B085": "turn loop: tokens that were not sampled",
    "B087": "turn loop: no budget left",
    "B089": "turn loop: prompt longer than the model",
    "B091": "turn loop: per-turn cap",
    "B093": "turn loop: turn limit",
    "B099": "sandbox client: late reply",
}
TRUNCATION = {"B095", "B097"}
PARSED = sorted(ROWS.keys() - HANDLED_ELSEWHERE.keys() - TRUNCATION)


def _tool(name: str, *arguments: str) -> ToolSpec:
    properties = {argument: {"type": "string"} for argument in arguments}
    return ToolSpec(name, "", {"type": "object", "properties": properties, "required": list(arguments)})


PYTHON = _tool("python", "code")
PYTHON_IO = _tool("python_io", "code", "input")
TOOLS = (PYTHON, PYTHON_IO)


def _block(code: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'python', 'arguments': {'code': code}})}\n</tool_call>"


def _call(code: str) -> ToolCall:
    return ToolCall("python", {"code": code})


def _error(text: str, **options: Any) -> str:
    (found,) = parse_tool_calls(text, TOOLS, **options)
    assert isinstance(found, CallError)
    return found.text


def test_every_row_of_the_case_file_has_somebody_who_answers_for_it() -> None:
    assert ROWS.keys() >= HANDLED_ELSEWHERE.keys() | TRUNCATION
    assert all("text" in ROWS[row]["input"] for row in PARSED), "a new row needs a test or a line above"


@pytest.mark.parametrize("row_id", PARSED)
def test_case(row_id: str) -> None:
    case, expected = ROWS[row_id]["input"], ROWS[row_id]["expected"]
    found = parse_tool_calls(
        case["text"],
        TOOLS,
        finish_reason=case.get("finish_reason", "stop"),
        max_calls=case.get("max_parallel_calls"),
    )
    calls = [each for each in found if isinstance(each, ToolCall)]
    assert calls == [ToolCall(**call) for call in expected["calls"]]
    assert len(found) - len(calls) == expected["errors"]


def test_the_papers_tool_takes_code_and_input_and_nothing_else() -> None:
    assert PYTHON_TOOL.name == "execute_python_code_with_standard_io"
    assert set(PYTHON_TOOL.properties) == set(PYTHON_TOOL.required) == {"code", "input"}
    arguments = {"code": "print(input())", "input": "7"}
    text = f"<tool_call>{json.dumps({'name': PYTHON_TOOL.name, 'arguments': arguments})}</tool_call>"
    assert parse_tool_calls(text, [PYTHON_TOOL]) == (ToolCall(PYTHON_TOOL.name, arguments),)


def test_an_optional_argument_may_be_left_out() -> None:
    tool = ToolSpec("t", "", {"properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["a"]})
    text = '<tool_call>{"name": "t", "arguments": {"a": "1"}}</tool_call>'
    assert parse_tool_calls(text, [tool]) == (ToolCall("t", {"a": "1"}),)


@given(st.text())
def test_whatever_the_code_contains_comes_out_as_it_went_in(code: str) -> None:
    escaped = _block(code)
    unescaped = json.dumps({"name": "python", "arguments": {"code": code}}, ensure_ascii=False)
    raw = f"<tool_call>{unescaped}</tool_call>"
    assert parse_tool_calls(escaped + raw, TOOLS) == (_call(code), _call(code))


@pytest.mark.parametrize("tag", ["<tool_call>", "</tool_call>", "<think>", "</think>", "</reason>", "<|im_end|>"])
def test_tag_text_inside_a_string_is_text(tag: str) -> None:
    text = f"<reason>so {_block(tag)} and"  # never closed: the tag in the string does not close it
    assert parse_tool_calls(text, TOOLS) == (_call(tag),)


@given(
    st.text(st.sampled_from('{}[]":,\\ \n<>/ab1') | st.sampled_from("toolcal_rsnik"), max_size=60),
    st.booleans(),
)
def test_no_text_makes_the_parser_fail(noise: str, in_block: bool) -> None:
    text = f"<tool_call>{noise}</tool_call>" if in_block else noise
    assert isinstance(parse_tool_calls(text + _block("1"), TOOLS), tuple)


class TestErrorsSayWhatWasWrongAndWhatWasExpected:
    def test_unknown_tool_lists_the_known_ones(self) -> None:
        text = _error('<tool_call>{"name": "shell", "arguments": {}}</tool_call>')
        assert "'shell'" in text
        assert "python, python_io" in text

    def test_malformed_json_names_the_place(self) -> None:
        text = _error('<tool_call>{"name":"python" "arguments":{}}</tool_call>')
        assert "delimiter at character 17" in text
        assert '"python" "arguments"' in text
        assert 'Expected {"name"' in text

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ('{"code": "a"}', "argument input is missing"),
            ('{"code": "a", "input": 5}', "argument input is a number, expected a string"),
            ('{"code": null, "input": ""}', "argument code is missing or null, expected a string"),
            ('{"code": "a", "input": "", "sudo": true}', "unknown argument 'sudo'"),
            ('{"code": "\\ud800", "input": ""}', "lone surrogate"),
        ],
    )
    def test_wrong_arguments_are_named_with_the_right_ones(self, arguments: str, said: str) -> None:
        text = _error(f'<tool_call>{{"name": "python_io", "arguments": {arguments}}}</tool_call>')
        assert said in text
        assert "Expected arguments of python_io, all strings: code, input." in text

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("[" * 20_000 + "]" * 20_000, "nested too deeply"),
            ('{"name": ' + "1" * 5000 + "}", "malformed|digits"),
            ('{"name": NaN}', "NaN is not JSON"),
            ('{"name": "python", "name": "python"}', "key 'name' occurs twice"),
            ("[1, 2]", "the call is an array"),
            ('{"name": ["python"]}', '"name" is an array'),
            ('{"name": "python", "arguments": "{}"}', '"arguments" is a string, expected an object'),
            (
                json.dumps({"name": "python", "arguments": {"code": "1"}}) + " done",
                "text after the JSON object",
            ),
        ],
    )
    def test_other_bodies(self, body: str, said: str) -> None:
        assert any(part in _error(f"<tool_call>{body}</tool_call>") for part in said.split("|"))

    def test_a_name_of_any_length_gives_a_short_error(self) -> None:
        assert len(_error(f'<tool_call>{{"name": "{"x" * 100_000}", "arguments": {{}}}}</tool_call>')) < 300


class TestWhereABlockEnds:
    def test_a_broken_block_ends_at_its_closing_tag(self) -> None:
        found = parse_tool_calls(f"<tool_call>oops</tool_call> again {_block('1')}", TOOLS)
        assert [type(each) for each in found] == [CallError, ToolCall]

    def test_or_before_the_next_block(self) -> None:
        found = parse_tool_calls(f"I write <tool_call> like so: {_block('1')}", TOOLS)
        assert [type(each) for each in found] == [CallError, ToolCall]

    @pytest.mark.parametrize("reason", ["length", "abort"])
    def test_an_unclosed_one_is_nothing_when_generation_was_cut(self, reason: str) -> None:
        complete_json = _block("2").removesuffix("</tool_call>")
        for cut in ('<tool_call>{"name": "py', complete_json, "<tool_call>"):
            assert parse_tool_calls(_block("1") + cut, TOOLS, finish_reason=reason) == (_call("1"),)

    def test_and_an_error_when_the_policy_ended_there_itself(self) -> None:
        assert "no closing </tool_call>" in _error(_block("1").removesuffix("</tool_call>"))


class TestReasoning:
    """A call inside closed reasoning is a draft."""

    @pytest.mark.parametrize("tag", ["think", "reason"])
    def test_drafts_neither_run_nor_fail(self, tag: str) -> None:
        text = f"<{tag}>{_block('draft')}<tool_call>x</tool_call> I write <tool_call></{tag}>{_block('real')}"
        assert parse_tool_calls(text, TOOLS) == (_call("real"),)

    def test_a_turn_may_reason_several_times(self) -> None:
        text = f"<reason>a</reason>{_block('1')}<reason>{_block('draft')}</reason>{_block('2')}"
        assert parse_tool_calls(text, TOOLS) == (_call("1"), _call("2"))

    def test_reasoning_that_is_never_closed_shields_nothing(self) -> None:
        assert parse_tool_calls(f"<reason>let me see {_block('1')}", TOOLS) == (_call("1"),)

    def test_a_closing_tag_alone_is_text(self) -> None:
        assert parse_tool_calls(f"{_block('1')}</reason>", TOOLS) == (_call("1"),)

    def test_only_its_own_tag_closes_reasoning(self) -> None:
        text = f"<reason><think>{_block('draft')}</think></reason>{_block('real')}"
        assert parse_tool_calls(text, TOOLS) == (_call("real"),)


def test_every_block_over_the_limit_is_answered_and_broken_ones_count() -> None:
    text = f"<tool_call>oops</tool_call>{_block('1')}{_block('2')}"
    broken, run, refused = parse_tool_calls(text, TOOLS, max_calls=2)
    assert isinstance(broken, CallError)
    assert run == _call("1")
    assert isinstance(refused, CallError)
    assert "limit reached, calls in one turn: 2." in refused.text


def test_hostile_text_is_parsed_in_time() -> None:
    began = time.perf_counter()
    for piece in ("<tool_call>", '<tool_call>"', "<tool_call>[[[", "<think>", '<tool_call>{"a": '):
        parse_tool_calls(piece * 5000, TOOLS)
    assert time.perf_counter() - began < 10


class TestTruncateMiddle:
    def test_head_and_tail_stay_around_a_marker(self) -> None:
        case, expected = ROWS["B095"]["input"], ROWS["B095"]["expected"]
        cut = truncate_middle(case["text"], case["limit"])
        assert cut.startswith(expected["starts_with"])
        assert cut.endswith(expected["ends_with"])
        assert "80 characters left out" in cut

    def test_no_character_is_halved(self) -> None:
        case = ROWS["B097"]["input"]
        cut = truncate_middle(case["text_utf8"], case["limit_bytes"])
        assert cut.encode().decode() == cut
        assert cut.count(case["text_utf8"][0]) == 33

    def test_short_text_is_left_alone(self) -> None:
        assert truncate_middle("abc", 3) == "abc"

    def test_a_limit_of_nothing_leaves_the_marker(self) -> None:
        assert truncate_middle("abc", 0).strip() == "[... 3 characters left out ...]"

    def test_a_negative_limit_is_refused(self) -> None:
        with pytest.raises(ValueError, match="limit_chars"):
            truncate_middle("abc", -1)

    @given(st.text(max_size=200), st.integers(0, 100))
    def test_exactly_the_limit_stays(self, text: str, limit: int) -> None:
        cut = truncate_middle(text, limit)
        if len(text) <= limit:
            assert cut == text
        else:
            head = limit - limit // 2
            assert cut.startswith(text[:head] + "\n[... ")
            assert cut.endswith(" ...]\n" + text[len(text) - limit // 2 :])
