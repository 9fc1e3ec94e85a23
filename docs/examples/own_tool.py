"""A tool of your own: looks integer sequences up. A recipe names it as ``docs.examples.own_tool:SequenceTool``.

Start the engine where Python finds the module: in its folder's root, or with that on PYTHONPATH.
"""
# ruff: noqa: INP001 - the examples are no package

from collections.abc import Mapping
from typing import Any

from engine.rollout.tools.base import ToolContext, ToolOutcome
from engine.rollout.tools.spec import ToolSpec

SEQUENCES = {"fibonacci": (0, 1, 1, 2, 3, 5, 8, 13, 21, 34), "squares": (0, 1, 4, 9, 16, 25, 36, 49, 64, 81)}


class SequenceTool:
    """The policy calls ``look_up_sequence`` with a name and how many terms it wants."""

    spec = ToolSpec(
        name="look_up_sequence",
        description="The first terms of a well-known integer sequence.",
        parameters={
            "type": "object",
            "properties": {
                "name": {"enum": sorted(SEQUENCES)},
                "terms": {"type": "integer", "minimum": 1, "maximum": 10},
            },
            "required": ["name", "terms"],
        },
    )

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        """Arguments have passed the schema; an exception raised here is told to the policy as a tool error."""
        return ToolOutcome(", ".join(map(str, SEQUENCES[arguments["name"]][: arguments["terms"]])))
