"""Runs a program in a locked-down child as `python main.py` would, and ends the process with its exit code.

Differences from a plain interpreter, all deliberate: stdout is line-buffered (what was printed survives a
kill), text that UTF-8 cannot hold is escaped, and objects alive at the end get no `__del__`. The program may
patch or break anything here; it only hurts itself, since nobody listens to this process but through its exit
status.
"""

import atexit
import builtins
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, ModuleType
from typing import NoReturn

from sandbox.backend.sessions import cells

NAME = "main.py"
# Private names: the program may replace those of the modules.
_exit, _compile, _exec, _print_exception = os._exit, compile, exec, traceback.print_exception


def prepare(scratch: str) -> None:
    """What can be done in the zygote, before the program is known: its streams, its `__main__`."""
    _fresh_streams()
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv[:] = [NAME]
    sys.path.insert(0, "")
    move_to(scratch)


def move_to(scratch: str) -> None:
    """The program will live in this folder."""
    sys.modules["__main__"].__dict__["__file__"] = f"{scratch}/{NAME}"
    sys.path[0] = scratch


def run(source: bytes) -> NoReturn:
    """Run to the end, exit functions and non-daemon threads included."""
    text = source.decode("utf-8", "surrogatepass")
    main = sys.modules["__main__"]
    linecache.cache[NAME] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        NAME,
    )  # source lines in tracebacks
    code = _outcome(lambda: _exec(_compiled(text), main.__dict__))
    # As at the end of any interpreter; full finalisation would free every shared page one by one.
    code = _outcome(threading._shutdown) or code  # type: ignore[attr-defined]
    code = _outcome(atexit._run_exitfuncs) or code
    for stream in (sys.stdout, sys.stderr):
        _outcome(stream.flush)
    _exit(code)


def _fresh_streams() -> None:
    """For descriptors that change later: those of the zygote must be of the same kind, or seeking would be tried."""
    _become_a_pipe(1, 2)
    cells.open_streams()


def _become_a_pipe(*fds: int) -> None:
    read, write = os.pipe()
    for fd in fds:
        os.dup2(write, fd)
    os.close(read)
    os.close(write)


def _compiled(text: str) -> CodeType:
    if "\0" in text:
        raise SyntaxError("source code cannot contain null bytes")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SyntaxError(f"source code is not valid Unicode: {error}") from None
    code: CodeType = _compile(text, NAME, "exec", dont_inherit=True)
    return code


def _outcome(step: Callable[[], object]) -> int:
    """Exit code that a plain interpreter would give after this step."""
    try:
        step()
    except SystemExit as stop:
        return _exit_code(stop.code)
    except BaseException as error:  # whatever it is, it is the program's and ends it
        _show(error)
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with suppress(BaseException):  # a program that broke its own stderr still ends with code 1
        print(code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    # The first frames are ours (and those of the lambda): a plain interpreter would not show them.
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == _show.__code__.co_filename:
        trace = trace.tb_next
    with suppress(BaseException):  # if the program broke its own reporting, the exit code still tells
        if sys.excepthook is sys.__excepthook__:
            _print_exception(type(error), error, trace)
        else:
            sys.excepthook(type(error), error, trace)
