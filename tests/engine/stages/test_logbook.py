"""Warnings of our modules reach the event log; others' do not, and nothing does after the run."""

import logging

from engine.contract.events import Event, LogLine
from engine.stages.logbook import warnings_as_events


def test_warnings_become_log_lines() -> None:
    told: list[LogLine] = []

    def append(line: LogLine) -> Event:
        told.append(line)
        return Event(attempt=1, seq=len(told), at=0.0, body=line)

    with warnings_as_events(append):
        logging.getLogger("engine.rollout.pool").warning("engine %s is lost\x00", "e0")
        logging.getLogger("engine.rollout.pool").info("nobody needs this")
        logging.getLogger("sandbox.node").error("a zygote died")
        logging.getLogger("urllib3").warning("not ours")
    logging.getLogger("engine.rollout.pool").warning("after the run")
    assert [(line.level, line.message) for line in told] == [
        ("warning", "engine e0 is lost\\x00"),
        ("error", "a zygote died"),
    ]
