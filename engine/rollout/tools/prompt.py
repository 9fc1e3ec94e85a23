"""How the system prompt shows a recipe's tools. Leaves out the rest of the prompt: ``engine.data.protocol``."""

from collections.abc import Sequence

from engine.data.protocol import SYSTEM, system_prompt
from engine.rollout.tools.base import Tool
from engine.rollout.tools.python import PYTHON_TOOL


def system_of(tools: Sequence[Tool]) -> str:
    """The system prompt that shows the tools. The Python tool alone has the short one that the SFT stage teaches."""
    specs = [tool.spec for tool in tools]
    return SYSTEM if specs == [PYTHON_TOOL] else system_prompt([spec.as_json() for spec in specs])
