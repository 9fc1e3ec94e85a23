"""``python -m engine parse-calls``: the rows of ``cases/toolcalls.jsonl`` through the command, and wrong lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from engine.cli import app
from engine.commands import parse_calls

CASES = Path(__file__).parents[2] / "cases" / "toolcalls.jsonl"
ROWS = [row for row in map(json.loads, CASES.read_text("utf-8").splitlines()) if "text" in row["input"]]
PARSED = [row for row in ROWS if "calls" in row["expected"]]


def parse(*lines: object) -> Result:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return CliRunner().invoke(app, ["parse-calls"], input="\n".join(texts))


def answers(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_every_row_of_the_case_file() -> None:
    lines = []
    for row in PARSED:
        given = row["input"]
        line = {name: given[name] for name in ("text", "finish_reason", "tools") if name in given}
        lines.append({"id": row["id"], **line, "max_calls": given.get("max_parallel_calls")})
    result = parse(*lines)
    assert result.exit_code == 0
    found = answers(result)
    assert len(found) == len(PARSED) > 30
    for answer, row in zip(found, PARSED, strict=True):
        assert (answer["id"], answer["calls"], answer["errors"]) == (row["id"], *row["expected"].values())
        assert len(answer["error_texts"]) == answer["errors"]


def test_without_tools_all_three_are_known() -> None:
    arguments = {"python": {"code": "1"}, "python_io": {"code": "1", "input": ""}}
    arguments["execute_python_code_with_standard_io"] = arguments["python_io"]
    calls = [{"name": name, "arguments": given} for name, given in arguments.items()]
    text = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
    everything, some = answers(parse({"id": 1, "text": text}, {"id": 2, "text": text, "tools": ["python"]}))
    assert everything == {"id": 1, "calls": calls, "errors": 0, "error_texts": []}
    assert (some["calls"], some["errors"]) == (calls[:1], 2)
    assert "unknown tool 'python_io'. Known tools: python." in some["error_texts"][0]


@pytest.mark.parametrize(
    ("line", "name", "field"),
    [
        ("{", None, None),
        ("[" * 100_000, None, None),
        ("[]", None, None),
        ({"id": "a"}, "a", "text"),
        ({"text": ""}, None, "id"),
        ({"id": "a", "text": 5}, "a", "text"),
        ({"id": "a", "text": "", "max_calls": -1}, "a", "max_calls"),
        ({"id": "a", "text": "", "tools": ["ruby"]}, "a", "tools.0"),
        ({"id": "a", "text": "", "finish_reason": "tired"}, "a", "finish_reason"),
        ({"id": "a", "text": "", "max_parallel_calls": 1}, "a", "max_parallel_calls"),
    ],
)
def test_a_bad_line_is_named_and_spoils_no_other(line: object, name: str | None, field: str | None) -> None:
    good = {"id": "good", "text": "hello"}
    result = parse(good, "", line, good)
    first, fault, last = answers(result)
    assert first == last == {"id": "good", "calls": [], "errors": 0, "error_texts": []}
    assert (fault["id"], fault["error"]["line"], fault["error"]["field"]) == (name, 3, field)
    assert fault["error"]["message"]
    assert result.exit_code == 2


def test_a_line_is_answered_before_the_next_is_read() -> None:
    lines = iter([b'{"id": 1, "text": ""}', b'{"id": 2, "text": ""}'])
    answering = parse_calls.answers(lines)
    assert next(answering)["id"] == 1
    assert next(lines) == b'{"id": 2, "text": ""}'
