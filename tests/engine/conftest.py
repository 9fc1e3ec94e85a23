"""Waiting for others, and making others wait, for every test of the engine.

Tests cannot import this file (importlib mode), so what they need are fixtures.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest

from engine.rollout.base import GenerateRequest


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    """Wait for what other processes do, by asking again and again, for at most ``seconds``."""

    async def wait(condition: Callable[[], object], seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while True:
                found = condition()
                if await found if inspect.isawaitable(found) else found:
                    return
                await asyncio.sleep(0.02)

    return wait


@pytest.fixture
def gate() -> type:
    """A pace for a scripted engine: requests wait until the gate is opened."""

    class Gate:
        def __init__(self) -> None:
            self.open = asyncio.Event()
            self.reached = asyncio.Event()

        async def __call__(self, request: GenerateRequest) -> None:
            self.reached.set()
            await self.open.wait()

    return Gate
