"""Announcements are best effort: a Valkey that is away or hangs holds nobody up. And: a layer that reaches no other
process is refused at start."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from redis.exceptions import ConnectionError as RedisConnectionError

from webapp.live import announce
from webapp.live.checks import channel_layer_crosses_processes

CASES = {
    case["id"]: case
    for case in map(json.loads, Path("tests/cases/platform.jsonl").read_text().splitlines())
    if case["kind"] == "channels"
}


class Layer:
    """A channel layer that does ``what`` when it is asked to send."""

    def __init__(self, what: Any) -> None:
        self._what, self.asked = what, 0

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self.asked += 1
        await self._what()


async def _refuse() -> None:
    raise RedisConnectionError("Error 2 connecting to unix:/nowhere")


async def _hang() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("what", [_refuse, _hang], ids=["away", "hangs"])
def test_a_valkey_that_does_not_answer_is_asked_once_and_then_left_alone(
    what: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layer = Layer(what)
    monkeypatch.setattr(announce, "PATIENCE_S", 0.05)
    monkeypatch.setattr(announce, "get_channel_layer", lambda: layer)
    monkeypatch.setattr(announce._Rest, "until", 0.0)
    for _ in range(100):
        announce.announce_run("run_x")
    assert layer.asked == 1
    assert len(caplog.records) == 1
    monkeypatch.setattr(announce._Rest, "until", time.monotonic() - 1)
    announce.announce_run("run_x")
    assert layer.asked == 2


@pytest.mark.parametrize("case", [CASES["F063"]], ids=["F063"])
def test_a_layer_in_memory_is_an_error_at_start(case: dict[str, Any], settings: Any) -> None:
    name = f"channels.layers.{case['input']['layer']}ChannelLayer"
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": name}}
    (found,) = channel_layer_crosses_processes(None)
    assert isinstance(found, checks.Error)
    assert name in found.msg
    assert found.hint
    settings.CHANNEL_LAYERS = {}
    assert [each.id for each in channel_layer_crosses_processes(None)] == ["live.E001"]


def test_the_layer_of_the_platform_passes() -> None:
    from webapp.config.settings import CHANNEL_LAYERS

    assert channel_layer_crosses_processes in checks.registry.registry.get_checks()
    assert "InMemory" not in CHANNEL_LAYERS["default"]["BACKEND"]
