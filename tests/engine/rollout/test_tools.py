"""Tools of a recipe: how they are found, what a rollout makes of their answers, what they keep while it lasts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engine.data.protocol import SYSTEM, TOOL_NAME
from engine.rollout.tools.base import ToolContext, ToolOutcome
from engine.rollout.tools.prompt import system_of
from engine.rollout.tools.python import PYTHON_TOOL, VARIABLES_GONE, PythonSessionTool, PythonTool
from engine.rollout.tools.registry import ToolsRefused, load_tools
from engine.rollout.tools.spec import ToolSpec
from sandbox.contract import ExecRequest, ExecStatus, RequestRefused, SandboxUnavailable, SessionLost

ANSWER = "<answer>\\boxed{4}</answer>"


def calling(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def cell(code: str) -> str:
    return calling("execute_python_cell", code=code)


class OwnTool:
    """A tool as a user writes one; ``answer`` is what its calls come to."""

    spec = ToolSpec("own", "Doubles.", {"properties": {"n": {"type": "integer"}}, "required": ["n"]})

    def __init__(self, answer: Callable[[], Any] = lambda: ToolOutcome("good")) -> None:
        self.answer = answer
        self.log: list[str] = []

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutcome:
        self.log.append(await context.scope.keep(self, self._opened))
        return self.answer()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[str]:
        self.log.append("opened")
        yield "used"
        self.log.append("closed")


def raising(error: Exception) -> Callable[[], Any]:
    def answer() -> Any:
        raise error

    return answer


class Unmade(OwnTool):
    """A class that wants an argument."""

    def __init__(self, size: int) -> None:
        super().__init__()


OWN = OwnTool()
NO_SPEC = type("NoSpec", (), {"spec": "mine", "call": OwnTool.call})
HERE = __name__


class TestNames:
    def test_built_in_tools_and_a_users_own(self) -> None:
        python, session, own, made = load_tools(["python", "python_session", f"{HERE}:OWN"]) + load_tools(
            [f"{HERE}:OwnTool"]
        )
        assert (type(python), type(session), own) == (PythonTool, PythonSessionTool, OWN)
        assert isinstance(made, OwnTool), "a class is made into a tool"

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("no.such.module:tool", "cannot be imported: ModuleNotFoundError: No module named 'no'"),
            (f"{HERE}:nothing", "cannot be imported: AttributeError"),
            (f"{HERE}:calling", "expected a tool: an object, or a class, with `spec` and `async def call"),
            ("subprocess:Popen", "expected a tool"),
            (f"{HERE}:NO_SPEC", "spec is str, expected a ToolSpec"),
            (f"{HERE}:Unmade", "cannot be made: TypeError"),
        ],
    )
    def test_one_that_cannot_be_used_is_named_with_its_field(self, name: str, said: str) -> None:
        with pytest.raises(ToolsRefused) as refused:
            load_tools(["python", name])
        (problem,) = refused.value.problems
        assert problem.startswith(f"tools.1: {name}: ")
        assert said in problem

    def test_all_wrong_ones_are_named_and_a_name_is_taken_once(self) -> None:
        with pytest.raises(ToolsRefused) as refused:
            load_tools(["no:tool", "python", "python", f"{HERE}:OWN", f"{HERE}:OwnTool"])
        assert [problem.split(":")[0] for problem in refused.value.problems] == ["tools.0", "tools.2", "tools.4"]
        assert "another tool of the recipe is called own too" in refused.value.problems[2]


class TestPrompt:
    def test_the_python_tool_alone_is_shown_as_sft_teaches_it(self) -> None:
        assert system_of([PythonTool()]) == SYSTEM
        assert PYTHON_TOOL.name == TOOL_NAME

    def test_other_tools_are_shown_in_full_one_a_line(self) -> None:
        shown = system_of([PythonTool(), OwnTool()])
        assert shown.splitlines()[0] == SYSTEM.splitlines()[0]
        lines = shown.split("<tools>\n")[1].split("\n</tools>")[0].splitlines()
        assert [json.loads(line) for line in lines] == [PYTHON_TOOL.as_json(), OwnTool.spec.as_json()]


class TestUsersOwn:
    async def test_its_answer_is_recorded_like_any_other(self, converse) -> None:
        tool = OwnTool(lambda: ToolOutcome("no", ExecStatus.TIMEOUT, "Late", queued_s=0.5, wall_s=2.0))
        made = await converse(calling("own", n=5), ANSWER, tools=(PythonTool(), tool)).run()
        (record,) = made.calls
        assert (record.name, record.arguments, record.response) == ("own", {"n": "5"}, "no")
        assert (record.status, record.error_type, record.queued_s, record.wall_s) == ("timeout", "Late", 0.5, 2.0)

    @pytest.mark.parametrize(
        ("answer", "kind", "said"),
        [
            (raising(KeyError("n")), "KeyError", "Tool error: KeyError: 'n'"),
            (lambda: "text", "TypeError", "Tool error: TypeError: the tool answered str, expected ToolOutcome"),
        ],
    )
    async def test_its_fault_is_told_to_the_policy(self, converse, answer, kind, said) -> None:
        made = await converse(calling("own", n=1), ANSWER, tools=(OwnTool(answer),)).run()
        (record,) = made.calls
        assert (record.status, record.error_type, record.response) == ("error", kind, said)
        assert made.turns[1].text == said

    @pytest.mark.parametrize("failure", [SandboxUnavailable("node lost"), RequestRefused("the token is not known")])
    async def test_our_failure_is_no_answer(self, converse, failure) -> None:
        tool = OwnTool(raising(failure))
        with pytest.raises(type(failure), match=str(failure)):
            await converse(calling("own", n=1), ANSWER, tools=(tool,)).run()

    async def test_what_it_keeps_is_opened_once_and_closed_at_the_end(self, converse) -> None:
        tool = OwnTool()
        twice = calling("own", n=1) * 2
        await converse(twice, twice, ANSWER, tools=(tool,)).run()
        assert tool.log == ["opened", "used", "used", "used", "used", "closed"]

    async def test_and_closed_when_the_rollout_is_spoiled(self, converse) -> None:
        tool = OwnTool(raising(SandboxUnavailable("node lost")))
        with pytest.raises(SandboxUnavailable):
            await converse(calling("own", n=1), tools=(tool,)).run()
        assert tool.log == ["opened", "used", "closed"]

    async def test_one_that_cannot_be_closed_costs_no_rollout(self, converse, caplog) -> None:
        class Unclosable(OwnTool):
            @asynccontextmanager
            async def _opened(self) -> AsyncIterator[str]:
                yield "used"
                raise OSError("still busy")

        made = await converse(calling("own", n=1), ANSWER, tools=(Unclosable(),)).run()
        assert made.calls[0].status == "ok"
        assert "could not be closed: OSError: still busy" in caplog.text


class TestPythonSession:
    """Cells of one session a rollout, by ``python_session``."""

    @pytest.fixture
    def tools(self) -> tuple[PythonSessionTool]:
        return (PythonSessionTool(),)

    async def test_cells_are_numbered_in_one_session_that_is_let_go(self, converse, sandbox, tools) -> None:
        await converse(cell("a") + cell("b"), cell("c"), ANSWER, tools=tools).run()
        assert [(r.code, r.cell) for r in sandbox.requests] == [("a", 0), ("b", 1), ("c", 2)]
        (session,) = {request.session for request in sandbox.requests}
        assert sandbox.ended == [session]

    async def test_calls_of_one_turn_run_one_after_the_other(self, converse, sandbox, tools) -> None:
        async def alone(request: ExecRequest):
            assert sandbox.running == 1
            await asyncio.sleep(0)
            return sandbox.result(request)

        sandbox.programs = dict.fromkeys("abc", alone)
        await converse(cell("a") + cell("b") + cell("c"), ANSWER, tools=tools).run()
        assert [r.code for r in sandbox.requests] == ["a", "b", "c"]

    async def test_each_rollout_has_its_own(self, converse, sandbox, tools) -> None:
        for _ in range(2):
            await converse(cell("a"), ANSWER, tools=tools).run()
        assert len({request.session for request in sandbox.requests}) == 2

    async def test_a_rollout_without_a_call_opens_none(self, converse, sandbox, tools) -> None:
        await converse(ANSWER, tools=tools).run()
        assert sandbox.ended == []

    async def test_the_policy_is_told_that_its_variables_are_gone(self, converse, sandbox, tools) -> None:
        async def too_long(request: ExecRequest):
            return sandbox.result(request, "timeout", wall_s=5.0, exit_code=None, session_kept=False)

        sandbox.programs["a"] = too_long
        made = await converse(cell("a"), cell("b"), ANSWER, tools=tools).run()
        first, second = made.calls
        assert first.response == f"Timeout: the program was stopped after 5 seconds.\n{VARIABLES_GONE}"
        assert (first.status, second.status) == ("timeout", "ok")

    async def test_variables_lost_through_us_spoil_the_attempt(self, converse, sandbox, tools) -> None:
        async def lost(request: ExecRequest):
            raise SessionLost("its node was drained")

        sandbox.programs["b"] = lost
        with pytest.raises(SessionLost):
            await converse(cell("a"), cell("b"), ANSWER, tools=tools).run()
        assert len(sandbox.ended) == 1, "let go however the rollout ends"

    async def test_a_rollout_that_is_given_up_lets_its_session_go(self, converse, sandbox, tools) -> None:
        reached = asyncio.Event()

        async def hangs(request: ExecRequest):
            reached.set()
            await asyncio.Event().wait()

        sandbox.programs["a"] = hangs
        rollout = asyncio.ensure_future(converse(cell("a"), tools=tools).run())
        await reached.wait()
        rollout.cancel()
        await asyncio.wait([rollout])
        assert len(sandbox.ended) == 1
