"""The rules of sessions, on processes that are puppets: what comes next, what is answered again, what is lost."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandbox.backend.protocol import CallLost
from sandbox.backend.sessions.cell_protocol import MAX_ORDER, decode_order, encode_answer
from sandbox.backend.sessions.resident import Resident
from sandbox.backend.sessions.table import SessionTable
from sandbox.contract import (
    ExecRequest,
    ExecResult,
    ExecStatus,
    Limits,
    RequestRefused,
    SandboxBusy,
    SandboxUnavailable,
    SessionLost,
)
from tests.sandbox.support import until


class Puppet:
    """A `Resident` without a process. It prints how many cells it has run, and obeys: `exit`, `lose`, `hang`, `oom`."""

    address_space_limited = False

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.control, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stdout, self._stdout = os.pipe()
        self.stderr, self._stderr = os.pipe()
        for end in (self.control, self._theirs):
            end.setblocking(False)
        self.cells = 0
        self.closed = self.out_of_memory = False
        asyncio.get_running_loop().add_reader(self._theirs, self._obey)

    def _obey(self) -> None:
        order = decode_order(self._theirs.recv(MAX_ORDER))
        self.cells += 1
        os.write(self._stdout, str(self.cells).encode())
        match order.source:
            case b"hang":
                pass
            case b"exit":
                self._end(3 << 8)
            case b"oom":
                self.out_of_memory = True
                self._end(9)
            case b"lose":
                self.lose()
            case _:
                self._theirs.send(encode_answer(order.nonce, 0))

    def _end(self, wait_status: int) -> None:
        if not self.ended.done():
            self.ended.set_result(wait_status)

    def lose(self) -> None:
        self.ended.set_exception(CallLost("the zygote died"))

    def kill(self) -> None:
        self._end(9)

    def arm(self, limits: Limits) -> None: ...

    def oom_killed(self) -> bool:
        return self.out_of_memory

    async def close(self) -> None:
        self.kill()
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().remove_reader(self._theirs)
            for fd in (self.stdout, self._stdout, self.stderr, self._stderr):
                os.close(fd)
            self.control.close()
            self._theirs.close()


class Stage:
    """A table of puppets."""

    def __init__(self, most: int = 9, idle_s: float = 60) -> None:
        self.table = SessionTable(self._start, most, idle_s)
        self.puppets: list[Puppet] = []
        self.failure: Exception | None = None
        self.start_s = 0.0

    async def _start(self, limits: Limits) -> Resident:
        if self.failure:
            raise self.failure
        await asyncio.sleep(self.start_s)
        self.puppets.append(Puppet())
        return self.puppets[-1]

    async def cell(self, number: int, code: str = "", session: str = "s", **limits: float) -> ExecResult:
        request = ExecRequest(code=code, session=session, cell=number, limits=Limits.model_validate(limits))
        return await self.table.run(request, queued_s=0)


@asynccontextmanager
async def stage(most: int = 9, idle_s: float = 60) -> AsyncIterator[Stage]:
    made = Stage(most, idle_s)
    yield made
    await made.table.close()
    assert all(puppet.closed for puppet in made.puppets), "a process was left open"


async def test_cells_run_in_one_process_and_in_order() -> None:
    async with stage() as it:
        assert [(await it.cell(number)).stdout for number in range(3)] == ["1", "2", "3"]
        assert (len(it.puppets), it.table.count) == (1, 1)


async def test_cells_that_come_at_once_take_turns() -> None:
    async with stage() as it:
        results = await asyncio.gather(*(it.cell(number) for number in range(5)))
        assert [result.stdout for result in results] == ["1", "2", "3", "4", "5"]


async def test_the_wait_for_a_process_counts_as_queueing() -> None:
    async with stage() as it:
        it.start_s = 0.1
        first, second = await it.cell(0), await it.cell(1)
        assert first.queued_s >= 0.1 > second.queued_s


async def test_sessions_do_not_wait_for_each_other() -> None:
    async with stage() as it:
        stuck = asyncio.create_task(it.cell(0, "hang", "a"))
        await until(lambda: it.puppets and it.puppets[0].cells)
        assert (await it.cell(0, session="b")).stdout == "1"
        await it.table.end("a")
        with pytest.raises(SessionLost, match="session a is gone: it was ended"):
            await stuck


async def test_the_last_cell_is_answered_again_without_running() -> None:
    async with stage() as it:
        first = await it.cell(0)
        again = await it.table.run(ExecRequest(id="again", code="", session="s"), queued_s=0)
        assert again == first.model_copy(update={"id": "again"})
        assert it.puppets[0].cells == 1


async def test_a_cell_that_comes_again_while_it_runs_gets_the_same_answer() -> None:
    async with stage() as it:
        first, again = await asyncio.gather(it.cell(0), it.cell(0))
        assert (first.stdout, again.stdout, it.puppets[0].cells) == ("1", "1", 1)


async def test_an_older_cell_or_one_out_of_order_is_refused_and_harms_nothing() -> None:
    async with stage() as it:
        for number in range(3):
            await it.cell(number)
        with pytest.raises(SessionLost, match="cannot run cell 1: cell 3 was expected"):
            await it.cell(1)
        with pytest.raises(SessionLost, match="cannot run cell 4: cell 3 was expected"):
            await it.cell(4)
        with pytest.raises(RequestRefused, match="session s is in use already"):
            await it.cell(0)
        assert (await it.cell(3)).stdout == "4"


async def test_a_session_is_opened_by_its_cell_0() -> None:
    async with stage() as it:
        with pytest.raises(SessionLost, match="its cell 0 has to come before cell 2"):
            await it.cell(2)
        assert not it.puppets


async def test_a_cell_that_ends_its_process_takes_the_variables_along() -> None:
    async with stage() as it:
        assert (await it.cell(0)).session_kept
        ended = await it.cell(1, "exit")
        assert (ended.session_kept, ended.exit_code, it.table.count) == (False, 3, 0)
        fresh = await it.cell(2)
        assert (fresh.stdout, fresh.session_kept, fresh.detail) == ("1", True, "")


async def test_later_cells_are_held_to_the_memory_of_cell_0() -> None:
    async with stage() as it:
        await it.cell(0, memory_mb=64)
        result = await it.cell(1, "oom", memory_mb=9999)
        assert (result.status, result.session_kept) == (ExecStatus.MEMORY, False)
        assert "memory_mb = 64" in result.detail


async def test_a_process_that_ends_between_two_cells_is_told_with_the_next() -> None:
    async with stage() as it:
        await it.cell(0)
        it.puppets[0].kill()
        fresh = await it.cell(1)
        assert (fresh.stdout, fresh.session_kept) == ("1", True)
        assert "died of signal 9" in fresh.detail
        assert "fresh variables" in fresh.detail


@pytest.mark.parametrize("when", ["between cells", "in a cell"])
async def test_what_is_lost_through_us_is_told_and_never_run_again(when: str) -> None:
    async with stage() as it:
        await it.cell(0)
        if when == "between cells":
            it.puppets[0].lose()
        for number in (1, 1, 2, 0):
            with pytest.raises(SessionLost, match="session s is gone: the zygote died"):
                await it.cell(number, "lose")
        assert (len(it.puppets), it.table.count) == (1, 0)


async def test_a_cancelled_cell_takes_its_session_along() -> None:
    async with stage() as it:
        task = asyncio.create_task(it.cell(0, "hang"))
        await until(lambda: it.puppets and it.puppets[0].cells)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert it.puppets[0].closed
        with pytest.raises(SessionLost, match="cancelled"):
            await it.cell(1)


async def test_waiting_cells_are_told_when_their_session_ends() -> None:
    async with stage() as it:
        cells = [asyncio.create_task(it.cell(number, "hang")) for number in range(3)]
        await until(lambda: it.puppets and it.puppets[0].cells)
        await it.table.end("s")
        outcomes = await asyncio.gather(*cells, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SessionLost] * 3


async def test_an_idle_session_is_let_go_and_the_next_cell_is_told_why() -> None:
    async with stage(idle_s=0.05) as it:
        await it.cell(0)
        await until(lambda: it.puppets[0].closed)
        with pytest.raises(SessionLost, match=r"no cell came for 0\.05 s"):
            await it.cell(1)


async def test_a_session_is_not_idle_while_a_cell_runs() -> None:
    async with stage(idle_s=0.05) as it:
        await it.cell(0)
        assert (await it.cell(1, "hang", wall_s=0.3)).status is ExecStatus.TIMEOUT


async def test_no_more_sessions_than_there_is_room_for() -> None:
    async with stage(most=1) as it:
        await it.cell(0, session="a")
        with pytest.raises(SandboxBusy, match="no room for session b: all 1 are taken"):
            await it.cell(0, session="b")
        await it.table.end("a")
        await it.cell(0, session="b")


async def test_a_session_that_could_not_be_opened_may_be_tried_again() -> None:
    async with stage(most=1) as it:
        it.failure = CallLost("the zygote died")
        with pytest.raises(CallLost):
            await it.cell(0)
        it.failure = None
        assert (await it.cell(0)).stdout == "1"


async def test_ended_names_are_not_used_again() -> None:
    async with stage() as it:
        await it.cell(0)
        await it.table.end("s")
        await it.table.end("unknown")
        with pytest.raises(SessionLost, match="it was ended"):
            await it.cell(0)


async def test_a_closed_table_runs_nothing() -> None:
    async with stage() as it:
        running = asyncio.create_task(it.cell(0, "hang"))
        await until(lambda: it.puppets and it.puppets[0].cells)
        await it.table.close()
        with pytest.raises(SessionLost, match="the sandbox was closed"):
            await running
        with pytest.raises(SandboxUnavailable, match="closed"):
            await it.cell(0, session="t")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["", "exit"])), max_size=12))
def test_every_cell_runs_once_and_in_its_place(submitted: list[tuple[int, str]]) -> None:
    """Whatever comes: the cells that ran are 0, 1, 2, ... and their answers count what their process has run."""

    async def submit_all() -> None:
        async with stage() as it:
            expected, alive, last = 0, 0, ""
            for number, code in submitted:
                try:
                    seen = (await it.cell(number, code)).stdout
                except (SessionLost, RequestRefused):
                    assert number not in (expected, expected - 1)
                    continue
                if number == expected - 1:
                    assert seen == last
                    continue
                alive += 1
                assert (number, seen) == (expected, str(alive))
                expected, last = expected + 1, seen
                alive = 0 if code == "exit" else alive
            assert sum(puppet.cells for puppet in it.puppets) == expected

    asyncio.run(submit_all())
