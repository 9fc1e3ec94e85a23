"""Programs that use one berth after each other, or are forked from one zygote side by side, get nothing of each other.

Berths (a user id, cgroups, a place in the pool) are used again, and children are forked ahead of need: what is checked
here is that neither shows. What any one program must not get is in `sandbox.backend.conformance`.
"""

import asyncio
import json
import textwrap
from collections import Counter
from collections.abc import Iterator

import pytest

from sandbox.backend.forkserver.presets import HEAVY, LIGHT, preset_for
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, Limits
from tests.sandbox.support import SandboxThread

pytestmark = pytest.mark.e2e
ROUNDS = 12
"""Calls in a row: more than there are berths for one slot and its spares."""


@pytest.fixture(scope="module")
def one_slot() -> Iterator[SandboxThread]:
    with SandboxThread(slots=1) as running:
        yield running


def run(sandbox: SandboxThread, *codes: str, **limits: float) -> list[ExecResult]:
    """One after the other."""

    async def work() -> list[ExecResult]:
        requests = [ExecRequest(code=code, limits=Limits.model_validate(limits)) for code in codes]
        return [await sandbox.client.execute(request) for request in requests]

    return sandbox.run(work())


def program(text: str) -> str:
    return textwrap.dedent(text).strip()


STATE = program(
    """
    import json, os, resource, signal, stat, sys, threading
    status = dict(line.rstrip("\\n").partition(":\\t")[::2] for line in open("/proc/self/status"))
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    descriptors = []
    for number in sorted(numbers):
        try:
            descriptors.append((number, stat.S_IFMT(os.fstat(number).st_mode)))
        except OSError:
            pass
    print(json.dumps({
        "files": os.listdir("."),
        "cwd": os.getcwd(),
        "umask": os.umask(0),
        "environment": dict(os.environ),
        "arguments": sys.argv,
        "descriptors": descriptors,
        "processes": [name for name in os.listdir("/proc") if name.isdigit()],
        "threads": status["Threads"],
        "signals": [status[name] for name in ("SigBlk", "SigCgt", "ShdPnd", "SigPnd")],
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "ids": [len(set(os.getresuid())), len(set(os.getresgid())), os.getgroups()],
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"
                   and name != "RLIMIT_AS"},
        "mounts": sorted(line.split()[4] for line in open("/proc/self/mountinfo")),
    }, sort_keys=True))
    """
)
VANDAL = program(
    """
    import os, resource, signal, sys, tempfile
    os.umask(0o777), os.nice(5), os.chdir("/")
    os.environ["LEFT"] = sys.argv[0] = "left"
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run"):
        try:
            open(folder + "/left", "w").write("left")
        except OSError:
            pass
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.pause()
    """
)


def test_a_program_starts_in_the_same_state_whatever_ran_before_it(one_slot: SandboxThread) -> None:
    fresh, *later = run(one_slot, STATE, *[VANDAL, STATE] * ROUNDS)
    states = {result.stdout for result in later[1::2]}
    assert states == {fresh.stdout}, fresh.stderr
    state = json.loads(fresh.stdout)
    assert state["files"] == []
    assert state["processes"] == ["1"]
    assert [number for number, _ in state["descriptors"]] == [0, 1, 2]


STAYS = program(
    """
    import os, threading, time
    open("left", "w").write("left")
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    if not os.fork():
        os.setsid()
        time.sleep(60)
    """
)


def test_the_place_of_a_session_is_as_new_for_the_next_program(one_slot: SandboxThread) -> None:
    (fresh,) = run(one_slot, STATE)

    async def work() -> list[ExecResult]:
        states = []
        for _ in range(ROUNDS):
            async with one_slot.client.session() as session:
                assert (await session.execute(STAYS)).session_kept
            states.append(await one_slot.client.execute(ExecRequest(code=STATE)))
        return states

    assert {result.stdout for result in one_slot.run(work())} == {fresh.stdout}


RANDOM = program(
    """
    import os, random, secrets, tempfile, uuid
    print(random.random(), uuid.uuid4(), os.urandom(8).hex(), secrets.token_hex(8), tempfile.mkdtemp(), sep="\\n")
    """
)
RANDOM_MATHS = program(
    """
    import networkx, numpy as np, random, sympy, sympy.core.random
    print(np.random.rand(), np.random.default_rng().random(), random.random(), sympy.core.random.random(), sep="\\n")
    print(sympy.randMatrix(4), networkx.gnp_random_graph(30, 0.5).edges, sep="\\n")
    """
)


@pytest.mark.parametrize(("code", "preset"), [(RANDOM, LIGHT), (RANDOM_MATHS, HEAVY)], ids=["light", "heavy"])
def test_no_two_children_of_a_zygote_draw_the_same_numbers(code: str, preset: object, one_slot: SandboxThread) -> None:
    assert preset_for(code) is preset
    results = run(one_slot, *[code] * ROUNDS)
    assert {result.status for result in results} == {ExecStatus.OK}, results[0].stderr
    drawn = Counter(line for result in results for line in result.stdout.splitlines())
    assert [line for line, times in drawn.items() if times > 1] == []


def test_limits_are_those_of_the_call_and_not_of_the_one_before(one_slot: SandboxThread) -> None:
    """Small and large ones take turns: nothing of the last is kept, and nothing of it is still used up."""
    memory = "x = bytearray({} << 20); print('fits')"
    file = "open('f', 'wb').write(b'x' * ({} << 20)); print('fits')"
    threads = "import threading, time\nfor _ in range({}): threading.Thread(target=time.sleep, args=(0.05,)).start()\n"
    threads += "print('fits')"
    for _ in range(ROUNDS // 4):
        for code, small, large, limit in (
            (memory, 10, 90, {"memory_mb": (64, 128)}),
            (file, 3, 40, {"scratch_mb": (4, 48)}),
            (threads, 5, 60, {"processes": (8, 64)}),
        ):
            ((name, (low, high)),) = limit.items()
            tight = run(one_slot, code.format(large), code.format(small), **{name: low})
            wide = run(one_slot, code.format(large), **{name: high})
            assert ["fits" in result.stdout for result in (*tight, *wide)] == [False, True, True], (name, tight, wide)


def test_a_berth_whose_program_was_killed_for_memory_judges_the_next_one_anew(one_slot: SandboxThread) -> None:
    bomb, own_signal = "x = bytearray(1 << 30)", "import os\nif not os.fork(): os.kill(os.getpid(), 9)\nos.wait(); 1/0"
    results = run(one_slot, *[bomb, own_signal] * (ROUNDS // 2), memory_mb=128)
    assert [result.status for result in results] == [ExecStatus.MEMORY, ExecStatus.ERROR] * (ROUNDS // 2)


def test_memory_and_files_of_earlier_programs_are_not_charged_to_later_ones(one_slot: SandboxThread) -> None:
    greedy = "open('f', 'wb').write(b'x' * (20 << 20)); x = bytearray(60 << 20); print('fits')"
    results = run(one_slot, *[greedy] * ROUNDS, memory_mb=128)
    assert {result.stdout for result in results} == {"fits\n"}, results


# No literal of it may lie in the searching program's own memory: a pattern of one-character sets matches the word.
SECRET = "Kx7" + "QwertzSecret" + "9Zv"
SEARCH = program(
    """
    import re
    pattern = re.compile(b"[K]x[7]Qw[e]rt[z]Se[c]re[t]9[Z]v")
    found = 0
    memory = open("/proc/self/mem", "rb", buffering=0)
    for line in open("/proc/self/maps"):
        span, rights, *rest = line.split()
        if rights[0] == "r" and not rest[-1].startswith("[v"):
            start, end = (int(part, 16) for part in span.split("-"))
            memory.seek(start)
            found += len(pattern.findall(memory.read(end - start)))
    print("searched", found)
    """
)


def test_no_text_of_one_program_lies_in_the_memory_of_the_next(one_slot: SandboxThread) -> None:
    leaves = f"text = input(); print({SECRET!r}, text)"

    async def work() -> list[ExecResult]:
        results = []
        for _ in range(ROUNDS // 2):
            await one_slot.client.execute(ExecRequest(code=leaves, stdin=SECRET))
            results.append(await one_slot.client.execute(ExecRequest(code=SEARCH)))
        return results

    assert {result.stdout for result in one_slot.run(work())} == {"searched 0\n"}
    assert "searched 0" not in run(one_slot, f"held = {SECRET!r}\n{SEARCH}")[0].stdout, "the search finds nothing"


WAYS_TO_TALK = {
    "a name in the IPC namespace": "libc.syscall(240, b'q', 0o102, 0o600, None)",
    "System V shared memory": "libc.syscall(29, 1234, 4096, 0o1600)",
    "a port of the network namespace": "socket.socket().bind(('127.0.0.1', 0))",
    "a port of the kernel's choice": "socket.socket().listen()",
    "TCP without connect": "socket.socket().sendto(b'x', 0x20000000, ('0.0.0.0', 1))",
    "a datagram over IPv6": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('::', 1))",
    "an abstract socket": "socket.socket(socket.AF_UNIX).bind('\\0x')",
}


def test_programs_that_share_a_zygotes_namespaces_cannot_name_anything_in_them(one_slot: SandboxThread) -> None:
    ways = "".join(f"try: print({attempt}, {way!r})\nexcept OSError: pass\n" for way, attempt in WAYS_TO_TALK.items())
    (result,) = run(one_slot, f"import ctypes, socket\nlibc = ctypes.CDLL(None)\n{ways}")
    assert (result.status, {line.split()[0] for line in result.stdout.splitlines()}) == (ExecStatus.OK, {"-1"}), result


LISTEN = program(
    """
    import socket
    ear = socket.socket(type=socket.SOCK_DGRAM)
    ear.settimeout(1)
    ear.sendto(b"", ("0.0.0.0", 1))  # gives it a port, though bind is refused
    try:
        print("heard", ear.recv(9))
    except TimeoutError:
        print("silence")
    """
)
CALL = program(
    """
    import socket, time
    mouth, heard_of = socket.socket(type=socket.SOCK_DGRAM), set()
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        for line in list(open("/proc/net/udp"))[1:]:
            heard_of.add(port := int(line.split()[1].split(":")[1], 16))
            mouth.sendto(b"hello", ("0.0.0.0", port))
        time.sleep(0.01)
    """
)


def test_a_datagram_to_another_program_does_not_arrive(sandbox: SandboxThread) -> None:
    """Side by side, several of each, so that some share a zygote."""

    async def work() -> list[ExecResult]:
        requests = [ExecRequest(code=code) for code in (LISTEN, CALL, LISTEN, CALL)]
        return await asyncio.gather(*(sandbox.client.execute(request) for request in requests))

    first, _, second, _ = sandbox.run(work())
    assert (first.stdout, second.stdout) == ("silence\n", "silence\n"), (first.stderr, second.stderr)


def test_programs_that_run_side_by_side_have_user_ids_of_their_own(sandbox: SandboxThread) -> None:
    """By the user namespace and the id in it: the machine knows the process by both."""
    code = "import os, time; time.sleep(0.5); print(os.readlink('/proc/self/ns/user'), os.getuid(), os.getgid())"

    async def work() -> list[ExecResult]:
        return await asyncio.gather(*(sandbox.client.execute(ExecRequest(code=code)) for _ in range(4)))

    results = sandbox.run(work())
    assert {result.status for result in results} == {ExecStatus.OK}
    assert len({result.stdout for result in results}) == 4
