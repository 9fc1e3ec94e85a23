"""Two nodes on two machines, as far as one kernel has two: each in a network namespace, Valkey on TCP outside of both.

One node is killed in the midst of its work: no call is lost or doubled, and only its own sessions are lost.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.broker.valkey import ValkeyBroker
from sandbox.contract import ExecRequest, ExecResult, SessionLost
from tests.sandbox.broker.support import ValkeyServer
from tests.sandbox.support import PYTHON, ROOT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"),
]
NAMES = ("a", "b")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@dataclass
class Machine:
    """A network namespace and the cable that ties it to this one."""

    name: str
    gateway: str

    @property
    def namespace(self) -> str:
        return f"starloom-{os.getpid()}-{self.name}"

    def plug_in(self, number: int) -> None:
        ip("netns", "add", self.namespace)
        cable = f"sl{os.getpid()}{self.name}"
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        ip("addr", "add", f"{self.gateway}/30", "dev", cable)
        ip("link", "set", cable, "up")
        ip("-n", self.namespace, "addr", "add", f"10.231.{number}.2/30", "dev", "eth0")
        ip("-n", self.namespace, "link", "set", "eth0", "up")

    def start(self, port: int) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "sandbox", "node", "--slots", "2", "--name", self.name]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command, "--valkey", f"valkey://{self.gateway}:{port}"],
            cwd=ROOT,
            env={"STARLOOM_SANDBOX_PYTHON": str(PYTHON), "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def machines() -> Iterator[dict[str, Machine]]:
    machines = {name: Machine(name, f"10.231.{number}.1") for number, name in enumerate(NAMES)}
    try:
        for number, machine in enumerate(machines.values()):
            machine.plug_in(number)
        yield machines
    finally:
        for machine in machines.values():
            subprocess.run(["ip", "netns", "del", machine.namespace], check=False)


@pytest.fixture
def valkey(machines: dict[str, Machine], tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(tmp_path, *(machine.gateway for machine in machines.values())).start()
    yield server
    server.kill()


@pytest.fixture
def nodes(machines: dict[str, Machine], valkey: ValkeyServer) -> "Iterator[dict[str, subprocess.Popen[str]]]":
    nodes = {name: machine.start(valkey.port) for name, machine in machines.items()}
    for node in nodes.values():
        assert node.stdout
        assert "ready" in node.stdout.readline()
    yield nodes
    for node in nodes.values():
        node.terminate()
        node.wait(20)


def program(number: int) -> ExecRequest:
    return ExecRequest(id=str(number), code=f"import time; time.sleep(0.05); print({number})")


async def test_a_node_killed_in_mid_batch_loses_no_call_and_only_its_own_sessions(
    nodes: "dict[str, subprocess.Popen[str]]", valkey: ValkeyServer
) -> None:
    client = ValkeyBroker(valkey.url)

    def cell(session: str, number: int, code: str) -> "asyncio.Task[ExecResult]":
        return asyncio.create_task(client.submit(ExecRequest(session=session, cell=number, code=code)))

    home: dict[str, str] = {}
    while not all(list(home.values()).count(name) > 1 for name in NAMES):
        session = f"s{len(home)}"
        home[session] = (await cell(session, 0, f"name = '{session}'")).node

    calls = [asyncio.create_task(client.submit(program(number))) for number in range(120)]
    await asyncio.wait(calls[:20])
    lost = next(session for session in home if home[session] == "a")
    in_progress = cell(lost, 1, "import time; time.sleep(60)")
    nodes["a"].kill()

    results = [await call for call in calls]
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(120)]
    assert {result.node for result in results} == set(NAMES)
    with pytest.raises(SessionLost, match="lost"):
        await in_progress
    for session in home:
        if home[session] == "b":
            assert (await cell(session, 1, "name")).stdout == f"'{session}'\n"
        elif session != lost:
            with pytest.raises(SessionLost, match=f"session {session} is lost"):
                await cell(session, 1, "name")
    assert (await cell("new", 0, "print('here')")).node == "b"
    assert [node.name for node in (await client.status()).nodes] == ["b"]
    await client.close()
