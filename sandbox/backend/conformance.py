"""The exam that every backend passes: what programs may expect, then what hostile ones must not get.

Used by the tests and by anyone who brings up a machine, a backend or a way to one. Hostile checks print ESCAPED
when they get through. Backends without isolation (`SubprocessBackend`) sit the first part only.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits

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
    _attack(
        "too many threads",
        "import threading, time",
        "try:",
        "  for _ in range(300): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
        "  print('ESCAPED')",
        "except RuntimeError: pass",
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


async def failures(run: Run, checks: tuple[Check, ...]) -> list[str]:
    """Sit the exam, one check after the other: `Backend.run`, or `Executor.execute` of any sandbox. Empty: passed."""
    complaints = []
    for check in checks:
        request = ExecRequest(id=check.name, code=check.code, stdin=check.stdin, limits=check.limits)
        if complaint := check.complaint(await run(request)):
            complaints.append(complaint)
    return complaints
