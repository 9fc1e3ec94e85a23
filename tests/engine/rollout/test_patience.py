"""A sandbox that is away for a while: calls are tried again, a call that only itself fails is given back."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from engine.rollout import patience
from engine.rollout.patience import PatientExecutor, patiently
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, SandboxBusy, SandboxUnavailable, SessionLost


def result(request: ExecRequest) -> ExecResult:
    fields = {"status": ExecStatus.OK, "stdout": "", "stderr": "", "exit_code": 0, "wall_s": 0.0, "queued_s": 0.0}
    return ExecResult(id=request.id, error=None, **fields)


class Flaky:
    """A sandbox that fails where ``fails`` says so, asked with the number of the call and its code."""

    def __init__(self, fails: Callable[[int, str], bool], failure: type[Exception] = SandboxUnavailable) -> None:
        self.fails = fails
        self.failure = failure
        self.calls: list[str] = []

    async def execute(self, request: ExecRequest) -> ExecResult:
        self.calls.append(request.code)
        if self.fails(len(self.calls), request.code):
            raise self.failure("the node is gone")
        return result(request)


@asynccontextmanager
async def others_are_answered(patient: PatientExecutor) -> AsyncIterator[None]:
    async def others() -> None:
        while True:
            await patient.execute(ExecRequest(code="good"))
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    yield
    beside.cancel()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(patience, "_LONGEST_PAUSE_S", 0.002)


async def test_an_outage_costs_no_call_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    flaky = Flaky(lambda number, code: number <= 12)
    patient = PatientExecutor(flaky)
    done = await asyncio.gather(*(patient.execute(ExecRequest(code=str(n))) for n in range(4)))
    assert [each.status for each in done] == [ExecStatus.OK] * 4
    assert len(caplog.records) == 1
    assert "the node is gone" in caplog.text


async def test_one_that_lasts_is_given_up() -> None:
    patient = PatientExecutor(Flaky(lambda number, code: True), patience_s=0.02)
    with pytest.raises(SandboxUnavailable, match="the node is gone"):
        await patient.execute(ExecRequest(code="1"))


async def test_a_call_that_alone_fails_is_not_tried_for_ever() -> None:
    """It may be the one that kills the node."""
    flaky = Flaky(lambda number, code: code == "poison")
    patient = PatientExecutor(flaky, patience_s=60)
    async with others_are_answered(patient):
        with pytest.raises(SandboxUnavailable):
            await asyncio.wait_for(patient.execute(ExecRequest(code="poison")), 5)
    assert flaky.calls.count("poison") == patience.TRIES


async def test_a_busy_sandbox_is_waited_for_while_others_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    """Many more tries than an outage is given, and far beyond its patience: full is not broken."""
    clock = asyncio.get_running_loop().time
    full_until = clock() + 0.6
    waiting = Flaky(lambda number, code: code == "late" and clock() < full_until, SandboxBusy)
    patient = PatientExecutor(waiting, patience_s=0.2)
    async with others_are_answered(patient):
        done = await asyncio.wait_for(patient.execute(ExecRequest(code="late")), 5)
    assert waiting.calls.count("late") > patience.TRIES
    assert done.status is ExecStatus.OK
    assert not caplog.records


async def test_one_that_is_busy_and_answers_nobody_is_given_up() -> None:
    patient = PatientExecutor(Flaky(lambda number, code: True, SandboxBusy), patience_s=0.02)
    with pytest.raises(SandboxBusy):
        await patient.execute(ExecRequest(code="1"))


async def test_a_lost_session_is_not_asked_again() -> None:
    flaky = Flaky(lambda number, code: True, SessionLost)
    with pytest.raises(SessionLost):
        await PatientExecutor(flaky).execute(ExecRequest(code="1", session="s", cell=3))
    assert len(flaky.calls) == 1


async def test_a_cell_is_tried_again_as_the_same_cell() -> None:
    sent: list[ExecRequest] = []

    class Away:
        async def execute(self, request: ExecRequest) -> ExecResult:
            sent.append(request)
            if len(sent) < 3:
                raise SandboxUnavailable("the connection was lost")
            return result(request)

    cell = ExecRequest(code="x = 1", session="s", cell=2)
    await PatientExecutor(Away()).execute(cell)
    assert sent == [cell] * 3


async def test_what_is_no_failure_of_ours_is_passed_on_at_once() -> None:
    async def wrong() -> None:
        raise ValueError("a request that is none")

    with pytest.raises(ValueError, match="none"):
        await patiently(wrong)
