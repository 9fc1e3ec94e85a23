"""The exam of sessions, as `sandbox.backend.conformance` is that of single calls: what cells may expect, and what a
hostile one must not get. Every backend and every way to one passes it.
"""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits

Run = Callable[[ExecRequest], Awaitable[ExecResult]]
End = Callable[[str], Awaitable[object]]


@dataclass(frozen=True)
class Cell:
    """A cell and what must come of it; `None` and empty mean that anything will do."""

    code: str
    stdout: str | None = ""
    status: ExecStatus | None = ExecStatus.OK
    kept: bool | None = True
    exit_code: int | None = None
    stderr_has: str = ""
    line: int | None = None
    stdin: str = ""
    limits: Limits = field(default_factory=Limits)

    def complaint(self, result: ExecResult) -> str:
        """What is wrong with `result`; empty if nothing."""
        line = result.error.line if result.error else None
        wanted = (
            ("status", self.status, result.status),
            ("stdout", self.stdout, result.stdout),
            ("session_kept", self.kept, result.session_kept),
            ("exit code", self.exit_code, result.exit_code),
            ("line of the error", self.line, line),
        )
        said = f"stderr is {result.stderr[-500:]!r}; {result.detail}"
        for what, right, seen in wanted:
            if right is not None and seen != right:
                return f"{what} should be {right!r}, not {seen!r}; {said}"
        return "" if self.stderr_has in result.stderr else f"{said}, without {self.stderr_has!r}"


@dataclass(frozen=True)
class SessionCheck:
    """The cells of one session."""

    name: str
    cells: tuple[Cell, ...]
    forks: bool = False  # it starts processes, which not every tier allows


def _session(name: str, *cells: Cell | tuple[str, str], forks: bool = False) -> SessionCheck:
    return SessionCheck(name, tuple(cell if isinstance(cell, Cell) else Cell(*cell) for cell in cells), forks)


def _fails(code: str, stderr_has: str = "", line: int | None = None, exit_code: int = 1, stdout: str = "") -> Cell:
    return Cell(code, stdout, ExecStatus.ERROR, True, exit_code, stderr_has, line)


def _ends(code: str, status: ExecStatus, stdout: str | None = "", **limits: float) -> Cell:
    return Cell(code, stdout, status, kept=False, limits=Limits.model_validate(limits))


_FRESH = Cell("print('z' in globals())", "False\n")
_SOCKETS = """
import os, select, socket
def sockets():
    for fd in range(3, 1024):
        try: yield socket.socket(fileno=os.dup(fd))
        except OSError: pass
"""
_STEAL_NONCE = """
import sys
frame = sys._getframe()
while "order" not in frame.f_locals: frame = frame.f_back
nonce = frame.f_locals["order"].nonce
for s in sockets():
    s.send(nonce + b"\\0")
    select.select([s], [], [])  # the next cell is there
print("late")
"""

SESSION_BEHAVIOUR = (
    _session("keeps variables", ("x = 1", ""), ("x += 1\nprint(x)", "2\n")),
    _session("shows no output again", ("print('first')", "first\n"), ("print('second')", "second\n")),
    _session("runs no cell again", ("import random; r = r0 = random.random()", ""), ("print(r == r0)", "True\n")),
    _session("keeps files", ("open('a', 'w').write('x');", ""), ("print(open('a').read())", "x\n")),
    _session("is __main__", ("print(__name__)", "__main__\n")),
    _session(
        "pickles its classes",
        ("from dataclasses import dataclass\n@dataclass\nclass P: a: int", ""),
        ("import pickle\nprint(pickle.loads(pickle.dumps(P(1))))", "P(a=1)\n"),
    ),
    _session(
        "shows the last expression as IPython would",
        ("x = 2\nx * 3", "6\n"),
        ("1; 2", "2\n"),
        ("print('a')", "a\n"),
        ("5;  # quiet", ""),
        ("(5)  # ;", "5\n"),
        ("'a\\n'", "'a\\n'\n"),
        ("{'b': 1, 'a': [2]}", "{'b': 1, 'a': [2]}\n"),
        ("{'b' * 30: 'x' * 30, 'a' * 30: 1}", f"{{'{'b' * 30}': '{'x' * 30}',\n '{'a' * 30}': 1}}\n"),
        ("print(chr(0xd800))", "\\ud800\n"),
        ("6 * 7", "42\n"),
        ("_ + 1", "43\n"),
    ),
    _session(
        "errors keep variables and name the cell's own line",
        ("z = 1\n\n\ndef f():\n  1 / 0", ""),
        _fails("z = 2\nf()", 'File "<cell 1>", line 2, in <module>\n    f()\n', line=2),
        ("z", "2\n"),
    ),
    _session(
        "whatever ends a cell leaves the session",
        ("z = 1", ""),
        _fails("x = 1\ndef", "SyntaxError", line=2),
        _fails("x", "NameError", line=1),
        _fails("print('a')\0", "null bytes"),
        _fails("s = '\udc80'", "SyntaxError"),
        _fails("await f()", "SyntaxError", line=1),
        _fails("class C:\n  def __repr__(self): 1 / 0\nC()", "ZeroDivisionError", line=2),
        _fails("raise KeyboardInterrupt", "KeyboardInterrupt", line=1),
        _fails("raise SystemExit(3)", exit_code=3),
        _fails("import sys; sys.exit('bad')", "bad\n"),
        ("z", "1\n"),
    ),
    _session(
        "stdin is each cell's own",
        Cell("input() + input()", "'ab'\n", stdin="a\nb\nleft over"),
        _fails("input()", "EOFError", line=1),
        Cell("input()", "'c'\n", stdin="c"),
        _fails("exit(3)", exit_code=3),
        _fails("input()", "EOFError", line=1),
    ),
    _session("long cells", (f"z = '{'x' * 200_000}'", ""), ("len(z)", "200000\n")),
    _session("os._exit", ("z = 1", ""), Cell("import os; os._exit(5)", "", ExecStatus.ERROR, False, 5), _FRESH),
    _session("a crash", ("z = 1", ""), _ends("import ctypes; ctypes.string_at(0)", ExecStatus.ERROR), _FRESH),
    _session(
        "wall limit",
        ("z = 1", ""),
        _ends("print('part')\nwhile True: pass", ExecStatus.TIMEOUT, "part\n", wall_s=0.5),
        _FRESH,
    ),
    _session(
        "CPU limit, of each cell",
        ("z = 1\nimport time\nwhile time.process_time() < 0.4: pass", ""),
        Cell("t = time.process_time()\nwhile time.process_time() < t + 0.3: pass", limits=Limits(cpu_s=0.5)),
        _ends("while True: pass", ExecStatus.TIMEOUT, wall_s=30, cpu_s=0.3),
        _FRESH,
    ),
    _session(
        "memory limit",
        Cell("x = bytearray(1 << 30)", "", ExecStatus.MEMORY, kept=None, limits=Limits(memory_mb=256)),
        ("1", "1\n"),
    ),
    _session(
        "output limit",
        ("z = 1", ""),
        _ends("print('x' * 99_999)", ExecStatus.OUTPUT_LIMIT, "x" * 1000, output_bytes=1000),
        _FRESH,
    ),
    _session(
        "its forks end with the cell",
        Cell("import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)", None),
        ("print(os.getpid() != pid)", "True\n"),
        forks=True,
    ),
    _session(
        "broken builtins",
        ("import builtins\nb = vars(builtins)\nfor n in list(b): b[n] = None", ""),
        Cell("5 + 5", None, status=None),
        Cell("1 / 0", "", ExecStatus.ERROR, exit_code=1, line=1),
    ),
    _session("closed stdout", _fails("import sys; sys.stdout.close()\nprint(1)", "closed file"), ("z = 1", "")),
    _session("changed stdout", ("import io, sys; sys.stdout = io.StringIO()\nprint(1)", ""), ("2", "")),
)

SESSION_HOSTILE = (
    _session(
        "forged answer",
        (_SOCKETS, ""),
        _ends("for s in sockets(): s.send(bytes(17))", ExecStatus.KILLED, None),
        _FRESH,
    ),
    _session(
        "long answer",
        (_SOCKETS, ""),
        _ends("for s in sockets(): s.send(bytes(9999))", ExecStatus.KILLED, None),
        _FRESH,
    ),
    _session(
        "closed control socket",
        ("import os", ""),
        Cell("os.closerange(3, 1024)", "", ExecStatus.ERROR, kept=False),
        _FRESH,
    ),
    _session(
        "shut control socket",
        (_SOCKETS, ""),
        _ends("import time\nfor s in sockets(): s.shutdown(2)\ntime.sleep(9)", ExecStatus.KILLED),
        _FRESH,
    ),
    _session(
        "stolen nonce",
        (_SOCKETS, ""),
        (_STEAL_NONCE, ""),  # over early: its own loss
        _ends("print('fine')", ExecStatus.KILLED, None),
        _FRESH,
    ),
    _session(
        "tiny recursion limit",
        Cell("import sys; sys.setrecursionlimit(9)", None, None, None),
        Cell("1", None, None, None),
    ),
)


async def failures(run: Run, end: End, checks: tuple[SessionCheck, ...]) -> list[str]:
    """Sit the exam, one session after the other: `Backend.run` and `end_session`, or those of any sandbox. Empty:
    passed.
    """
    complaints = []
    for check in checks:
        name = f"exam-{uuid.uuid4().hex}"
        for number, cell in enumerate(check.cells):
            request = ExecRequest(code=cell.code, stdin=cell.stdin, session=name, cell=number, limits=cell.limits)
            if complaint := cell.complaint(await run(request)):
                complaints.append(f"{check.name}, cell {number}: {complaint}")
        await end(name)
    return complaints
