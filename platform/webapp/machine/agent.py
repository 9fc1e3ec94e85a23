"""The agent: the small process that starts this machine's engines, sees them end and tells the platform.

It answers JSON lines on a unix socket: ``start``, ``list``, ``alive``, ``kill`` (``local_launcher.py`` asks). It may
die: engines go on, and the next agent takes them up from their records. Leaves out how an engine is started and known
(``engines.py``) and what its end means (``runs.services.engine_gone``).
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from webapp.config.paths import Var, ensure_private
from webapp.machine.engines import COMMAND, GRACE_S, Popen, Record, Records, carriers, how_it_ended, kill, spawn, sweep

SOCKET = "agent.sock"
_LOOK_S = 0.25
_OLDER_S = 60  # an earlier launch of the same run writes its report and goes; after this it is killed
_LINE_BYTES = 1 << 20
_RUN_ID = re.compile(r"[A-Za-z0-9_]{1,64}")
_log = logging.getLogger(__name__)

Gone = Callable[[str, int, str], None]


class WrongOrder(Exception):
    """An order that makes no sense, said to whoever gave it."""


@dataclass
class Engine:
    """One launch as the agent holds it."""

    record: Record
    process: Popen | None = None
    """Ours to reap; None for one that an earlier agent started."""
    killed: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """It has ended, nothing of it is left, and the platform knows."""

    def lives(self) -> bool:
        if self.process is not None:
            return self.process.poll() is None
        return self.record.lives()

    @property
    def code(self) -> int | None:
        return None if self.process is None else self.process.returncode


class Agent:
    """``gone`` tells the platform of an end; it is called in a thread, again and again until it does not fail."""

    def __init__(self, var: Var, gone: Gone, command: Sequence[str] = COMMAND, grace_s: float = GRACE_S) -> None:
        self._var = var
        self._gone = gone
        self._command = command
        self._grace_s = grace_s
        self._records = Records(var.agent)
        self._engines: dict[tuple[str, int], Engine] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._orders: dict[str, Callable[[dict[str, Any]], Any]] = {
            "start": self._start,
            "list": self._list,
            "alive": self._alive,
            "kill": self._kill,
        }

    @property
    def socket(self) -> Path:
        return self._var.sockets / SOCKET

    async def serve(self, stop: asyncio.Event) -> None:
        """Take up what runs, then answer until ``stop``. Engines stay."""
        ensure_private(self._var.agent)
        ensure_private(self._var.sockets)
        for record in self._records.read():
            self._take_up(record)
        self.socket.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._converse, str(self.socket), limit=_LINE_BYTES)
        finally:
            os.umask(mask)
        async with server:
            await stop.wait()
        for task in self._tasks:
            task.cancel()
        self.socket.unlink(missing_ok=True)

    def _take_up(self, record: Record) -> None:
        """One of an earlier agent's: still running, ended meanwhile, or never started."""
        if not record.ended and record.pid is None:
            started = min(carriers(record), key=lambda process: process.create_time(), default=None)
            if started is None:  # it died before it could start it: whoever wants it asks again
                self._records.remove(record)
                return
            record = record.of_process(started.pid)
            self._records.write(record)
        engine = self._engines[record.key] = Engine(record)
        if record.ended:
            engine.done.set()
            return
        _log.info("%s launch %s: %s", *record.key, "taken up" if engine.lives() else "ended while no agent was there")
        self._in_background(self._see_it_end(engine))

    def _in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):  # the other side went away, or wrote a line that is too long
            _log.info("a conversation broke off")
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            order = json.loads(line)
            if not isinstance(order, dict) or order.get("do") not in self._orders:
                raise WrongOrder(f"expected a JSON object with do = {', '.join(self._orders)}")
            return {"ok": True, **await self._orders[order["do"]](order)}
        except (WrongOrder, OSError, ValueError, TypeError, KeyError) as error:
            _log.warning("an order failed: %s: %s", type(error).__name__, error)
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    async def _start(self, order: Mapping[str, Any]) -> dict[str, Any]:
        record = Record(_run_id(order), int(order["number"]), str(order["folder"]))
        environment = {str(name): str(value) for name, value in order["environment"].items()}
        of_run = [engine for engine in self._engines.values() if engine.record.run_id == record.run_id]
        if any(engine.record.number >= record.number for engine in of_run):
            return {"started": False}  # this launch, or a later one, was started already
        engine = self._engines[record.key] = Engine(record)
        self._records.write(record)
        older = [engine for engine in of_run if not engine.done.is_set()]
        if older:
            self._in_background(self._start_after(older, engine, environment))
        else:
            self._launch(engine, environment)
        return {"started": True}

    def _launch(self, engine: Engine, environment: Mapping[str, str]) -> None:
        try:
            engine.process = spawn(engine.record, self._command, environment, self._var)
        except OSError:
            del self._engines[engine.record.key]
            self._records.remove(engine.record)
            raise
        engine.record = engine.record.of_process(engine.process.pid)
        self._records.write(engine.record)
        _log.info("%s launch %s: started as process %s", *engine.record.key, engine.process.pid)
        self._in_background(self._see_it_end(engine))

    async def _start_after(self, older: list[Engine], engine: Engine, environment: Mapping[str, str]) -> None:
        """A run has one engine: the one before has told its end but may still be tidying up."""
        ends = [asyncio.ensure_future(each.done.wait()) for each in older]
        _, waiting = await asyncio.wait(ends, timeout=_OLDER_S)
        for each in older if waiting else ():
            await self._kill_engine(each)
        try:
            if engine.killed:
                raise WrongOrder("it was killed before it was started")
            self._launch(engine, environment)
        except (OSError, WrongOrder) as error:
            await self._tell(engine.record, str(error))
            self._close(engine)

    async def _see_it_end(self, engine: Engine) -> None:
        while engine.lives():  # noqa: ASYNC110 - a process that is nobody's child wakes nobody
            await asyncio.sleep(_LOOK_S)
        record = engine.record
        await asyncio.to_thread(sweep, record, self._grace_s)
        how = how_it_ended(record, engine.code, asked=engine.killed)
        _log.info("%s launch %s: ended, %s", *record.key, how)
        await self._tell(record, how)
        self._close(engine)

    def _close(self, engine: Engine) -> None:
        engine.record = replace(engine.record, ended=True)
        self._engines[engine.record.key] = engine
        self._records.write(engine.record)
        engine.done.set()

    async def _tell(self, record: Record, how: str) -> None:
        """Until the platform has taken it: its database may be away for a while."""
        pause = 1.0
        while True:
            try:
                await asyncio.to_thread(self._gone, record.run_id, record.number, how)
                return
            except Exception:
                _log.exception("%s launch %s: its end could not be told, trying again", *record.key)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 15.0)

    async def _list(self, order: Mapping[str, Any]) -> dict[str, Any]:
        living = [engine.record for engine in self._engines.values() if not engine.done.is_set()]
        return {"engines": [{"run_id": each.run_id, "number": each.number, "pid": each.pid} for each in living]}

    async def _alive(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """``alive`` until its end is told; ``known`` is false for a launch that nobody asked to start."""
        engine = self._engines.get((_run_id(order), int(order["number"])))
        return {"known": engine is not None, "alive": engine is not None and not engine.done.is_set()}

    async def _kill(self, order: Mapping[str, Any]) -> dict[str, Any]:
        engine = self._engines.get((_run_id(order), int(order["number"])))
        if engine is None or engine.done.is_set():
            return {"killed": False}
        self._in_background(self._kill_engine(engine))
        return {"killed": True}

    async def _kill_engine(self, engine: Engine) -> None:
        engine.killed = True
        await asyncio.to_thread(kill, engine.record, self._grace_s)


def _run_id(order: Mapping[str, Any]) -> str:
    """It becomes part of a file's name."""
    run_id = str(order["run_id"])
    if not _RUN_ID.fullmatch(run_id):
        raise WrongOrder(f"run_id: expected letters, digits and _, found {run_id!r}")
    return run_id
