"""A sandbox that is away for a while: calls are tried again, a call that only itself fails is given back."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from engine.rollout import patience
from engine.rollout.patience import PatientExecutor, patiently
from sandbox.contract import ExecRequest, ExecResult, ExecStatus, SandboxUnavailable


def result(request: ExecRequest) -> ExecResult:
    fields = {"status": ExecStatus.OK, "stdout": "", "stderr": "", "exit_code": 0, "wall_s": 0.0, "queued_s": 0.0}
    return ExecResult(id=request.id, error=None, **fields)


class Flaky:
    """A sandbox that fails where ``fails`` says so, asked with the number of the call and its code."""

    def __init__(self, fails: Callable[[int, str], bool]) -> None:
        self.fails = fails
        self.calls: list[str] = []

    async def execute(self, request: ExecRequest) -> ExecResult:
        self.calls.append(request.code)
        if self.fails(len(self.calls), request.code):
            raise SandboxUnavailable("the node is gone")
        return result(request)


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

    async def others() -> None:
        while True:
            await patient.execute(ExecRequest(code="good"))
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(others())
    with pytest.raises(SandboxUnavailable):
        await asyncio.wait_for(patient.execute(ExecRequest(code="poison")), 5)
    beside.cancel()
    assert flaky.calls.count("poison") == patience.TRIES


async def test_what_is_no_failure_of_ours_is_passed_on_at_once() -> None:
    async def wrong() -> None:
        raise ValueError("a request that is none")

    with pytest.raises(ValueError, match="none"):
        await patiently(wrong)
