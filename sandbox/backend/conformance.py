"""The exam that every backend passes: what programs may expect, then what hostile ones must not get.

Used by the tests, by `python -m sandbox selfcheck` and by anyone who brings up a machine, a backend or a way to one.
Hostile checks print ESCAPED when they get through. `exam` says what each tier sits; what the container tier fails is
listed, with the reason, and has to go on failing, so that the list stays true. Sessions have an exam of their own.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits, Tier

Run = Callable[[ExecRequest], Awaitable[ExecResult]]


@dataclass(frozen=True)
class Check:
    """A program and what must come of it; `None` and empty mean that anything will do."""

    name: str
    code: str
    status: ExecStatus | None = ExecStatus.OK
    stdout: str | None = None
    stderr_has: str = ""
    exit_code: int | None = None
    stdin: str = ""
    limits: Limits = field(default_factory=Limits)

    def complaint(self, result: ExecResult) -> str:
        """What is wrong with `result`; empty if nothing."""
        if "ESCAPED" in result.stdout:
            return f"{self.name}: escaped: {result.stdout.strip()}"
        wanted = (
            ("status", self.status, result.status),
            ("stdout", self.stdout, result.stdout),
            ("exit code", self.exit_code, result.exit_code),
        )
        said = f"stderr is {result.stderr[-500:]!r}"
        for what, right, seen in wanted:
            if right is not None and seen != right:
                return f"{self.name}: {what} should be {right!r}, not {seen!r}; {said}"
        if self.stderr_has not in result.stderr:
            return f"{self.name}: {said}, without {self.stderr_has!r}"
        return ""


def _prints(name: str, stdout: str, *lines: str, stdin: str = "") -> Check:
    return Check(name, "\n".join(lines), stdout=stdout, stdin=stdin)


def _fails(name: str, exit_code: int, stderr_has: str, *lines: str) -> Check:
    return Check(name, "\n".join(lines), ExecStatus.ERROR, stderr_has=stderr_has, exit_code=exit_code)


def _exceeds(name: str, status: ExecStatus, code: str, stdout: str | None = None, **limits: float) -> Check:
    return Check(name, code, status, stdout=stdout, limits=Limits.model_validate(limits))


_FLOOD = "while True: print('x' * 999)"

BEHAVIOUR = (
    _prints("prints", "42\n", "print(6 * 7)"),
    _prints("is __main__", "main.py\n", "if __name__ == '__main__': print(__file__[-7:])"),
    _prints("reads stdin", "ab\n", "print(input() + input())", stdin="a\nb"),
    _prints("sees the end of an empty stdin", "''\n", "import sys; print(repr(sys.stdin.read()))"),
    _prints("lone surrogate in the output", "\\ud800\n", "print(chr(0xd800))"),
    _prints("bytes that are no text", "\ufffdok", "import os; os.write(1, b'\\xffok')"),
    _prints("exit functions", "hi\nbye\n", "import atexit; atexit.register(print, 'bye')", "print('hi')"),
    _prints("waits for threads", "late\n", "import threading as t", "t.Timer(0.1, print, ['late']).start()"),
    _prints(
        "pickles its classes",
        "True\n",
        "import pickle",
        "class C: pass",
        "print(type(pickle.loads(pickle.dumps(C()))) is C)",
    ),
    _prints(
        "subprocess",
        "b'x\\n'\n",
        "import subprocess",
        "print(subprocess.run(['echo', 'x'], capture_output=True).stdout)",
    ),
    _prints(
        "multiprocessing",
        "child\n",
        "import multiprocessing",
        "p = multiprocessing.Process(target=print, args=('child',))",
        "p.start(); p.join()",
    ),
    _prints("event loop", "7\n", "import asyncio", "async def f(): return 7", "print(asyncio.run(f()))"),
    _prints("files", "x\n", "open('a', 'w').write('x')", "print(open('a').read())"),
    _prints("files of another call", "False\n", "import os; print(os.path.exists('a'))"),
    _prints("its own module", "1\n", "open('mine.py', 'w').write('x = 1')", "import mine; print(mine.x)"),
    _prints("a /proc of its own", "Name:\n", "print(open('/proc/self/status').readline()[:5])"),
    _prints(
        "modes of its files",
        "0o700\n",
        "import os; open('a', 'w'); os.chmod('a', 0o700)",
        "print(oct(os.stat('a').st_mode & 0o777))",
    ),
    _prints(
        "copies files",
        "True\n",
        "import os, shutil",
        "shutil.copy2(os.__file__, 'os.py')",
        "print(os.path.exists('os.py'))",
    ),
    _prints("makes a socket", "True\n", "import socket; print(socket.socket().fileno() > 2)"),
    _prints("broken builtins", "", "import builtins; builtins.print = builtins.open = None"),
    _prints("no wait for a daemon", "x\n", "import subprocess", "subprocess.Popen(['sleep', '60']); print('x')"),
    _fails("exit code", 3, "", "raise SystemExit(3)"),
    _fails("exit with a text", 1, "bad\n", "import sys; sys.exit('bad')"),
    _fails("exit code of os._exit", 5, "", "import os; os._exit(5)"),
    _fails("traceback", 1, 'main.py", line 2, in <module>\n    1/0\n', "x = 1", "1/0"),
    _fails("syntax error", 1, "SyntaxError", "def"),
    _fails("NUL in the source", 1, "null bytes", "print('a')\0"),
    _fails("lone surrogate in the source", 1, "SyntaxError", "s = '\udc80'"),
    _exceeds("wall limit", ExecStatus.TIMEOUT, "print('part')\nwhile True: pass", "part\n", wall_s=1),
    _exceeds("CPU limit", ExecStatus.TIMEOUT, "while True: pass", wall_s=20, cpu_s=1),
    _exceeds("memory limit", ExecStatus.MEMORY, "x = bytearray(1 << 30)", memory_mb=256),
    _exceeds("output limit", ExecStatus.OUTPUT_LIMIT, _FLOOD, ("x" * 999 + "\n") * 10, output_bytes=10000),
)


def _attack(name: str, *lines: str, **limits: float) -> Check:
    return Check(name, "\n".join(lines), status=None, limits=Limits.model_validate({"wall_s": 10, **limits}))


def _escape_if(name: str, condition: str, *before: str) -> Check:
    return _attack(name, "import os, socket, sys", *before, f"if {condition}: print('ESCAPED')")


def _must_raise(name: str, attack: str) -> Check:
    return _attack(name, "import os, resource, socket", f"try: {attack}; print('ESCAPED')", "except Exception: pass")


def _syscall(name: str, arguments: str) -> Check:
    """The call must fail; a filter that kills the program for it would do as well."""
    load = "import ctypes; libc = ctypes.CDLL(None)"
    return _attack(name, load, f"if libc.syscall({arguments}) != -1: print('ESCAPED')")


_THREADS = (
    "import threading, time",
    "try:",
    "  for _ in range(300): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "  print('ESCAPED')",
    "except RuntimeError: pass",
)

HOSTILE = (
    _escape_if("user id", "0 in (*os.getresuid(), *os.getresgid(), *os.getgroups())"),
    _escape_if(
        "capabilities",
        "any(int(line.split()[1], 16) for line in status if line.startswith('Cap'))",
        "status = list(open('/proc/self/status'))",
    ),
    _escape_if("processes of others", "[p for p in os.listdir('/proc') if p.isdigit() and p != '1']"),
    _escape_if(
        "environment",
        "'STARLOOM' in started or 'STARLOOM' in str(os.environ)",
        "started = open('/proc/self/environ').read()",
    ),
    _escape_if("descriptors of others", "len(os.listdir('/proc/self/fd')) > 4"),
    _must_raise("our package", "import sandbox"),
    _must_raise("host files", "open('/etc/shadow')"),
    _escape_if("names of host files", "os.path.exists('/var')"),
    _escape_if(
        "modes of the interpreter",
        "os.stat(os.__file__).st_mode != before",
        "before = os.stat(os.__file__).st_mode",
        "try: os.chmod(os.__file__, before ^ 0o1000)",
        "except OSError: pass",
    ),
    _must_raise("write to the interpreter", "open(os.__file__, 'r+b')"),
    _must_raise("write to /dev/shm", "open('/dev/shm/x', 'w')"),
    _must_raise("write to the root", "open('/x', 'w')"),
    _must_raise("connect", "socket.socket().connect(('127.0.0.1', 22))"),
    _must_raise("listen", "socket.socket().bind(('127.0.0.1', 8000))"),
    _must_raise("datagram", "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))"),
    _must_raise("unix socket", "socket.socket(socket.AF_UNIX)"),
    _must_raise("netlink socket", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    _must_raise("raise a hard limit", "resource.setrlimit(resource.RLIMIT_CPU, (99999, 99999))"),
    _must_raise("kill everyone", "os.kill(-1, 9)"),
    _attack(
        "signals to others",
        "import os",
        "for pid in {*range(2, 40000), os.getppid()} - {0, os.getpid()}:",
        "  try: os.kill(pid, 0); print('ESCAPED', pid)",
        "  except OSError: pass",
    ),
    _attack(
        "limits of others",
        "import os, resource",
        "for pid in {*range(2, 40000), os.getppid()} - {0, os.getpid()}:",
        "  try: resource.prlimit(pid, resource.RLIMIT_CPU); print('ESCAPED', pid)",
        "  except OSError: pass",
    ),
    _must_raise("memory of the parent", "open(f'/proc/{os.getppid()}/mem', 'rb').read(1)"),
    _must_raise(
        "datagram to a named socket",
        "socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b'x', '\\0starloom')",
    ),
    _syscall("user namespace", "272, 0x10000000"),
    _syscall("clone into a namespace", "56, 0x10000011, 0, 0, 0, 0"),
    _syscall("clone3", "435, 0, 0"),
    _syscall("ptrace", "101, 0, 0, 0, 0"),
    _syscall("io_uring", "425, 8, ctypes.create_string_buffer(256)"),
    _syscall("bpf", "321, 0, 0, 0"),
    _syscall("shared memory", "29, 1234, 4096, 0o1600"),
    _syscall("mount", "165, b'tmpfs', b'/tmp', b'tmpfs', 0, 0"),
    _syscall("umount", "166, b'/proc', 2"),
    _syscall("a system call from the future", "457, 0, 0"),
    _attack("too many threads", *_THREADS),
    _attack("too many threads with small stacks", "import threading; threading.stack_size(65536)", *_THREADS),
    _attack(
        "too many files",
        "try:",
        "  for number in range(600): open(str(number), 'w').close()",
        "  print('ESCAPED')",
        "except OSError: pass",
        scratch_mb=4,
    ),
    _attack(
        "files too large together",
        "try:",
        "  for number in range(4):",
        "    with open(str(number), 'wb') as file: file.write(bytes(3 << 20))",
        "  print('ESCAPED')",
        "except OSError: pass",
        scratch_mb=4,
    ),
)

MEMORY_OF_MANY = _attack(
    "memory over many processes",  # needs a cgroup: an address-space limit is each process's own
    "import os, time",
    "for _ in range(6):",
    "  if not os.fork():",
    "    x = bytearray(200 << 20); time.sleep(1); os._exit(0)",
    "if all(os.waitstatus_to_exitcode(os.wait()[1]) == 0 for _ in range(6)): print('ESCAPED')",
    memory_mb=256,
)


_NO_PROCESSES = "no new process can be made: without a pid namespace nothing would end it with its call"
_NO_QUOTA = "only the size of one file is limited: give $TMPDIR a volume with a quota"
CONTAINER_GAPS = {
    "subprocess": _NO_PROCESSES,
    "multiprocessing": _NO_PROCESSES,
    "no wait for a daemon": _NO_PROCESSES,
    "a /proc of its own": "all of /proc is closed: what it shows is not the program's alone",
    "modes of its files": "chmod, chown and utime answer that they worked and do nothing",
    "makes a socket": "there is no network namespace: no socket at all but pairs of them",
    "names of host files": "contents and folders are closed, but a guessed name tells whether it exists, and its size",
    "too many threads with small stacks": "threads are bounded by the address space alone: set a pids limit on the pod",
    "too many files": _NO_QUOTA,
    "files too large together": _NO_QUOTA,
    # As root only: an ordinary user's programs are not root, though they are that user.
    **({"user id": "the user id is the node's: run the node as an ordinary user"} if os.geteuid() == 0 else {}),
}
"""Checks that programs of the container tier fail -> why, or what happens instead."""


def exam(tier: Tier) -> tuple[Check, ...]:
    """What the programs of `tier` must pass."""
    if tier == "none":
        return BEHAVIOUR
    gaps = CONTAINER_GAPS if tier == "container" else {}
    return tuple(check for check in BEHAVIOUR + HOSTILE if check.name not in gaps)


def gaps(tier: Tier) -> tuple[Check, ...]:
    """What the programs of `tier` fail, as is known and documented."""
    return tuple(check for check in BEHAVIOUR + HOSTILE if tier == "container" and check.name in CONTAINER_GAPS)


async def sit(run: Run, checks: tuple[Check, ...]) -> AsyncIterator[tuple[Check, str]]:
    """Sit the exam, one check after the other: each with its complaint, empty where it passed."""
    for check in checks:
        request = ExecRequest(id=check.name, code=check.code, stdin=check.stdin, limits=check.limits)
        yield check, check.complaint(await run(request))


async def failures(run: Run, checks: tuple[Check, ...]) -> list[str]:
    """The complaints of `sit`, for `Backend.run` or `Executor.execute` of any sandbox. Empty: passed."""
    return [complaint async for _, complaint in sit(run, checks) if complaint]
