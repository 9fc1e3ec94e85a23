"""Runs the cells of one session, in the jail, in one `__main__` that lives as long as the process.

As IPython would: the value of a cell's last expression is shown, SystemExit ends the cell and not the session, and
tracebacks name `<cell N>` with its lines. Left out: `await` outside of functions, magics, and any wait for threads.

A cell may patch or break all that it can reach. It hurts its own session only: the supervisor believes nothing of
this process but its pipes, its end, and that a cell is over. So that a careless cell does not hang what comes after
it, the loop uses its own copy of the builtins and holds every function it calls by a name of its own.
"""

import builtins
import linecache
import sys
from array import array
from ast import Expr, Expression, Module, PyCF_ONLY_AST
from collections.abc import Callable
from ctypes import CDLL
from os import O_RDONLY, close, devnull, dup2, fstat, getcwd, getpid, pread, write
from os import _exit as exit_process
from os import open as open_fd
from pprint import pformat
from select import POLLIN, poll
from socket import AF_UNIX, MSG_CMSG_CLOEXEC, SHUT_WR, SOCK_SEQPACKET, socket, socketpair
from sys import __excepthook__ as print_plainly
from traceback import print_exception
from types import CodeType, ModuleType
from typing import Any, NoReturn, TextIO

from sandbox.backend.sessions.cell_protocol import (
    MAX_ORDER,
    NONCE_BYTES,
    Order,
    decode_order,
    encode_answer,
    encode_order,
)

# The builtins of the functions below: a cell that breaks `builtins.len` does not reach these.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]

_BROKEN = 70  # exit code of a session whose cells broke this loop; as EX_SOFTWARE
_LINE_CHARS = 80
_PAGE_CHARS = 10_000  # laying out takes long, and nobody reads longer ones as a table
_REHEARSALS = 32  # the interpreter adapts code within about ten runs: a child would have to copy what it adapts
_REHEARSED = b"print(1)", b"x = [1, 2]\nfor y in x:\n    x[0] += y\nx"
_BUFFER = bytearray(MAX_ORDER)  # made once: receiving works even where memory is used up
_IDLE_MS = 200
_trim: Callable[[int], int] = CDLL(None).malloc_trim
_CONTAINERS = (list, dict, tuple, set, frozenset)


def serve(control: socket) -> NoReturn:
    """Run the cells that come on `control` until it closes. Never returns.

    Nothing may be on stdin, and the streams of `sys` must be open; opening them here would cost many shared pages.
    """
    try:
        _serve(control)
        exit_process(0)  # there is no supervisor any more
    except BaseException as error:  # a closed socket, a tracing function: what a cell did reached our own code
        told = f"The session ended: its cells broke the loop that runs them ({type(error).__name__}).\n"
        _succeeds(lambda: write(2, told.encode()))
        exit_process(_BROKEN)


def rehearse() -> None:
    """Run some cells in a zygote and leave no trace, so that the sessions that it forks write to few shared pages."""
    path = sys.path[:]
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    with ours, theirs:
        for cell in range(_REHEARSALS):
            source = _REHEARSED[cell % len(_REHEARSED)]
            ours.send(encode_order(Order(bytes(NONCE_BYTES), cell, source, False, False)))
        ours.shutdown(SHUT_WR)
        _serve(theirs)
    sys.path[:] = path
    sys.displayhook = sys.__displayhook__
    del builtins._  # type: ignore[attr-defined]
    linecache.clearcache()


def _serve(control: socket) -> None:
    pid = getpid()
    control.setblocking(True)
    inbox = _Inbox(control)
    send = control.send
    flushes = sys.stdout.flush, sys.stderr.flush
    stdin = _Stdin()
    main = _fresh_main()
    while arrived := inbox.next():
        order, fds = arrived
        code = _outcome(_run, order, fds, stdin, main.__dict__)
        for flush in flushes:
            _succeeds(flush)
        _succeeds(lambda: (sys.stdout.flush(), sys.stderr.flush()))  # if the cell put others in place
        if getpid() != pid:
            exit_process(code)  # a fork that the cell made: it was to run the cell's end, and is no session
        send(encode_answer(order.nonce, code))
    stdin.close()


class _Inbox:
    """Where orders arrive."""

    def __init__(self, control: socket) -> None:
        self._receive = control.recvmsg_into
        self._buffer = _BUFFER
        waiting = poll()
        waiting.register(control, POLLIN)
        self._arrives = waiting.poll

    def next(self) -> tuple[Order, list[int]] | None:
        """The next order and its descriptors; None when no more can come."""
        size, beside = self._wait()
        if not size:
            return None
        fds = array("i")
        for _, _, data in beside:
            fds.frombytes(data)
        return decode_order(bytes(self._buffer[:size])), list(fds)

    def _wait(self) -> tuple[int, list[tuple[int, int, bytes]]]:
        while True:
            try:
                if not self._arrives(_IDLE_MS):
                    _trim(0)  # what the cells have freed need not wait with them
                size, beside, _, _ = self._receive([self._buffer], 64, MSG_CMSG_CLOEXEC)
                return size, beside
            except BaseException as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # from the kernel: a cell closed the socket
                continue  # from a signal handler, by an old `alarm` of a cell say: no cell is there to take it


class _Stdin:
    """Gives each cell a stdin of its own, as descriptor 0 and as `sys.stdin`."""

    def __init__(self) -> None:
        self._nothing = self._source = open_fd(devnull, O_RDONLY)
        self._stream = sys.stdin

    def replace(self, fd: int | None) -> None:
        """By the file open on `fd`, which is closed; by an empty one if there is none."""
        if fd is not None:
            self._open(fd)
            close(fd)
        elif self._source != self._nothing or self._stream.closed:  # `exit()` closes it
            self._open(self._nothing)

    def close(self) -> None:
        close(self._nothing)

    def _open(self, source: int) -> None:
        dup2(source, 0)
        self._source = source
        self._stream = _open_stdin()


def _open_stdin() -> TextIO:
    stream = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stdin = sys.__stdin__ = stream  # type: ignore[misc]
    return stream


def open_streams() -> None:
    """Those that programs and cells find: stdout by lines, text that UTF-8 cannot hold escaped."""
    _open_stdin()
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _fresh_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv[:] = [""]
    sys.path.insert(0, getcwd())
    sys.displayhook = _display
    return main


def _run(order: Order, fds: list[int], stdin: _Stdin, namespace: dict[str, Any]) -> None:
    source = _read(fds.pop(0)) if order.source_beside else order.source
    stdin.replace(fds.pop() if order.stdin_beside else None)
    text = source.decode("utf-8", "surrogatepass")
    name = f"<cell {order.cell}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # source lines in tracebacks
    if expression := _sole_expression(text, name):
        sys.displayhook(eval(expression, namespace))
        return
    statements, last = _parts(text, name)
    if statements.body:
        exec(compile(statements, name, "exec", dont_inherit=True), namespace)
    if last:
        sys.displayhook(eval(compile(last, name, "eval", dont_inherit=True), namespace))


def _read(fd: int) -> bytes:
    try:
        return pread(fd, fstat(fd).st_size, 0)
    finally:
        close(fd)


def _sole_expression(text: str, name: str) -> CodeType | None:
    """Most cells that show something are one expression: that needs no tree. None for all others."""
    try:
        code: CodeType = compile(text, name, "eval", dont_inherit=True)
    except (SyntaxError, ValueError):  # told by `_parts`, if it is wrong as statements too
        return None
    return code


def _parts(text: str, name: str) -> tuple[Module, Expression | None]:
    """The statements to run, and the expression to show, if the cell ends in one. Raises `SyntaxError`."""
    if "\0" in text:
        raise SyntaxError("source code cannot contain null bytes")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SyntaxError(f"source code is not valid Unicode: {error}") from None
    module = compile(text, name, "exec", PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(module, Module)
    if not module.body or not isinstance(last := module.body[-1], Expr) or _ends_in_semicolon(text, last):
        return module, None
    del module.body[-1]
    return module, Expression(last.value)


def _ends_in_semicolon(text: str, last: Expr) -> bool:
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    line = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[last.end_lineno - 1]
    return line.encode()[last.end_col_offset :].lstrip().startswith(b";")


def _display(value: object) -> None:
    """`sys.displayhook`: as the interactive interpreter's, long containers laid out over several lines."""
    if value is None:
        return
    text = repr(value)
    if type(value) in _CONTAINERS and _LINE_CHARS < len(text) <= _PAGE_CHARS:
        text = pformat(value, width=_LINE_CHARS, sort_dicts=False)
    print(text)
    builtins._ = value  # type: ignore[attr-defined]


def _outcome(step: Callable[..., None], *arguments: object) -> int:
    """Exit code that a plain interpreter would give after this step."""
    try:
        step(*arguments)
    except SystemExit as stop:
        return _exit_code(stop.code)
    except BaseException as error:  # whatever it is, it is the cell's and ends it
        _show(error)
        return 1
    return 0


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _succeeds(lambda: print(code, file=sys.stderr))  # a cell that broke its own stderr still ends with code 1
    return 1


def _show(error: BaseException) -> None:
    # The first frames are ours: a plain interpreter would not show them.
    while (trace := error.__traceback__) and trace.tb_frame.f_code.co_filename == _show.__code__.co_filename:
        error.__traceback__ = trace.tb_next
    hook = print_exception if sys.excepthook is sys.__excepthook__ else sys.excepthook
    if not _succeeds(lambda: hook(type(error), error, trace)):  # it needs builtins that the cell may have broken
        _succeeds(lambda: print_plainly(type(error), error, trace))


def _succeeds(step: Callable[[], object]) -> bool:
    """False where a cell broke what this step needs: that is the cell's own affair, and the loop goes on."""
    try:
        step()
    except BaseException:
        return False
    return True
