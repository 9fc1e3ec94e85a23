"""From the names in a recipe to tools: the built-in ones, and a user's own as ``module:attribute``.

``module`` is found as Python finds modules (the folder that the engine is started in, PYTHONPATH, what is installed);
``attribute`` is a tool, or a class of one that takes no arguments. Leaves out what a name may look like: the recipe.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from engine.rollout.tools.base import Tool
from engine.rollout.tools.python import PythonSessionTool, PythonTool
from engine.rollout.tools.spec import ToolSpec

BUILT_IN: Final[Mapping[str, Callable[[], Tool]]] = {"python": PythonTool, "python_session": PythonSessionTool}


class ToolsRefused(Exception):
    """Tools that a recipe names and that cannot be used; ``problems`` has one line for each, with its field."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def load_tools(names: Sequence[str]) -> tuple[Tool, ...]:
    """The tools by the names of ``Recipe.tools``. Raises ``ToolsRefused`` that names every wrong one."""
    tools, problems = [], []
    for place, name in enumerate(names):
        try:
            tools.append(load_tool(name))
            shown = [tool.spec.name for tool in tools]
            if shown.count(shown[-1]) > 1:
                raise ValueError(f"another tool of the recipe is called {shown[-1]} too")
        except ValueError as error:
            problems.append(f"tools.{place}: {name}: {error}")
    if problems:
        raise ToolsRefused(problems)
    return tuple(tools)


def load_tool(name: str) -> Tool:
    """One tool. Raises ``ValueError`` that says why there is none."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    found = _attribute(*name.split(":"))
    if not (hasattr(found, "spec") and inspect.iscoroutinefunction(getattr(found, "call", None))):
        raise ValueError("expected a tool: an object, or a class, with `spec` and `async def call(arguments, context)`")
    try:
        tool = found() if isinstance(found, type) else found
    except Exception as error:  # whatever the user's own code raises
        raise ValueError(f"cannot be made: {_said(error)}") from error
    if not isinstance(spec := tool.spec, ToolSpec):
        raise ValueError(f"spec is {type(spec).__name__}, expected a ToolSpec (engine.rollout.tools.spec)")
    return cast(Tool, tool)


def _attribute(module: str, attribute: str) -> object:
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the user's own module raises; a wrong spec of its tool, too
        raise ValueError(f"cannot be imported: {_said(error)}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
