"""The paper's conversation protocol as text: tags, system prompt, tool-call JSON (rStar2-Agent, section 2.1).

Leaves out token ids: ``render.py``. The system prompt is short because the tiny tokenizer spends its vocabulary on
it; it names the same parts as the paper's: reasoning, tools, calls, answer.
"""

import json
from collections.abc import Mapping, Sequence

END = "<|im_end|>"
START = "<|im_start|>"
PAD = "<|pad|>"
TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<reason>",
    "</reason>",
    "<answer>",
    "</answer>",
)
CONTROL_TOKENS = (PAD, START, END, *TAGS)

TOOL_NAME = "execute_python_code_with_standard_io"


def _system(tools: str, call: str = "") -> str:
    return (
        "Think in <reason></reason>, answer in <answer>\\boxed{}</answer>.\n"
        f"# Tools\n<tools>{tools}</tools>\n"
        f"Call in <tool_call>{call}</tool_call>."
    )


SYSTEM = _system(f'{{"name": "{TOOL_NAME}", "arguments": {{"code", "input"}}}}')
"""The system prompt of the Python tool alone, which the SFT stage teaches how to call."""


def system_prompt(tools: Sequence[Mapping[str, object]]) -> str:
    """The system prompt of other tools: each described in full by name, description and parameters, one a line."""
    shown = "\n".join(["", *(json.dumps(tool, ensure_ascii=False) for tool in tools), ""])
    return _system(shown, '{"name": ..., "arguments": {...}}')


def tool_call(code: str, stdin: str = "") -> str:
    """A call of the Python tool as the model writes it."""
    return f"<tool_call>{call_json(code, stdin)}</tool_call>"


def call_json(code: str, stdin: str = "") -> str:
    return json.dumps({"name": TOOL_NAME, "arguments": {"code": code, "input": stdin}})


def answer(value: str) -> str:
    return f"<answer>\\boxed{{{value}}}</answer>"
