"""What `manage.py up` does: bring the parts of one machine up in order, keep them, bring them down in order.

The parts are its children and die with it. Engines are not: they are asked for a checkpoint and stopped before the
parts go (``rest.py``), or left alone with ``keep_runs``, or when this process is killed; then the next `up` takes them
up. Leaves out how a part is made (``parts.py``) and kept (``keeper.py``).
"""

import asyncio
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection, connections

from webapp.config import servers
from webapp.config.paths import Var, ensure_private
from webapp.machine import demo, parts, rest
from webapp.machine.checks import checks
from webapp.machine.keeper import Keeper, PartFailed, trim
from webapp.machine.listener import NoPort, listen, remember
from webapp.machine.parts import Part
from webapp.machine.postgres import Postgres, ServerFailed
from webapp.machine.valkey import ASKED_ONCE, ValkeyServer
from webapp.machine.voice import Voice, box
from webapp.runs.launchers import LaunchFailed
from webapp.runs.services import Refused

_log = logging.getLogger(__name__)
T = TypeVar("T")
_EXTERNAL_S = 15
_REST_S, _KILLED_S = 30, 15
_TRIM_EVERY_S = 60
_DOWN_ORDER = (("agent", "sandbox", "beat", "worker", "web"), ("valkey",), ("postgres",))  # servers last


class Supervisor:
    """One `up`. ``run`` returns its exit code."""

    def __init__(self, var: Var, say: Voice, *, host: str, port: int, keep_runs: bool, with_demo: bool) -> None:
        self._var = var
        self._say = say
        self._host = host
        self._port = port
        self._keep_runs = keep_runs
        self._with_demo = with_demo
        self._keepers: dict[str, Keeper] = {}
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._listener: socket.socket | None = None

    async def run(self) -> int:
        self._heed_signals()
        up = asyncio.create_task(self._come_up())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait([up, stop], return_when=asyncio.FIRST_COMPLETED)
        if not up.done():  # told to stop before everything runs
            up.cancel()
            await asyncio.wait([up])
        failed = not up.cancelled() and self._failure(up)
        came_up = not up.cancelled() and not failed
        if came_up:
            await self._until_stop()
        await self._go_down(came_up=came_up)
        return 1 if failed else 0

    def _heed_signals(self) -> None:
        """The first asks to stop, the second not to wait for engines (a terminal that is closed may say it twice)."""

        def told(number: signal.Signals) -> None:
            if self._stop.is_set() and number != signal.SIGHUP:
                self._hurry.set()
            self._stop.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, told, number)

    def _failure(self, up: "asyncio.Task[None]") -> bool:
        """Whether coming up failed; said in words, a mistake of ours with its trace."""
        error = up.exception()
        if error is None:
            return False
        if isinstance(error, PartFailed | ServerFailed | NoPort | DatabaseError | LaunchFailed | Refused):
            self._say(str(error).strip())
        else:
            self._say(f"a mistake of Starloom's: {type(error).__name__}: {error}")
            _log.error("coming up failed", exc_info=error)
        return True

    async def _until_stop(self) -> None:
        while not self._stop.is_set():
            for log in self._var.logs.glob("*.log"):
                trim(log)
            try:
                await asyncio.wait_for(self._stop.wait(), _TRIM_EVERY_S)
            except TimeoutError:
                continue

    # Up

    async def _come_up(self) -> None:
        self._say(f"Starloom starts on {self._var.path}")
        ensure_private(self._var.sockets)
        settings.STATIC_ROOT.mkdir(exist_ok=True)  # empty: files are served from where the apps have them
        await asyncio.to_thread(parts.end_left_behind, self._var, 10)
        self._listener = listen(self._host, self._port, self._say)
        port = self._listener.getsockname()[1]
        before = remember(self._var, port)
        await self._bring_up(self._listener, port)
        await self._say_what_is_there(port, before)

    async def _bring_up(self, listener: socket.socket, port: int) -> None:
        if settings.SANDBOX.ours:
            self._begin(parts.sandbox(self._var, settings.SANDBOX))
        await self._bring_up_servers()
        self._say("database: bringing its tables up to date")
        await self._in_database(lambda: call_command("migrate", verbosity=0, interactive=False))
        django = [parts.web(self._var, listener), parts.agent(self._var, port)]
        django += [parts.worker(self._var, port), parts.beat(self._var, port)]
        for part in django:
            self._begin(part)
        await asyncio.gather(*(self._until_ready(part.name) for part in django), self._until_sandbox())

    async def _bring_up_servers(self) -> None:
        embedded, waiting = [], []
        if "DATABASE_URL" in os.environ:
            waiting.append(self._until_database())
        else:
            embedded.append(parts.server(Postgres.of(self._var), "Postgres", self._var))
        if "VALKEY_URL" in os.environ:
            waiting.append(self._until_valkey())
        else:
            embedded.append(parts.server(ValkeyServer.of(self._var), "Valkey", self._var))
        for part in embedded:
            self._begin(part)
            waiting.append(self._until_ready(part.name))
        await asyncio.gather(*waiting)

    def _begin(self, part: Part) -> None:
        keeper = self._keepers[part.name] = Keeper(part, self._var.logs / f"{part.name}.log", self._say)
        keeper.start()

    async def _until_ready(self, name: str) -> None:
        keeper = self._keepers[name]
        await keeper.until_ready()
        self._say(f"{keeper.part.title}: answers")

    async def _until_sandbox(self) -> None:
        """Without it the platform still shows what there is. One that is not ours is told of by the checks."""
        if not settings.SANDBOX.ours:
            self._say(f"the sandbox is the one of STARLOOM_SANDBOX, {settings.SANDBOX.shown}: no node is started here")
            return
        try:
            await self._until_ready("sandbox")
        except PartFailed as error:
            self._say(f"{error}\nruns that call tools will fail until it runs; it is tried again and again")

    async def _until_database(self) -> None:
        await self._until_external(connection.ensure_connection, "DATABASE_URL")

    async def _until_valkey(self) -> None:
        client = redis.Redis.from_url(servers.valkey(self._var).url, socket_timeout=3, retry=ASKED_ONCE)
        await self._until_external(client.ping, "VALKEY_URL")

    async def _until_external(self, ask: Callable[[], object], variable: str) -> None:
        """A server that we do not start ourselves may be starting, too."""
        deadline = time.monotonic() + _EXTERNAL_S
        while True:
            try:
                await self._in_database(ask)
            except (DatabaseError, redis.RedisError) as error:
                if time.monotonic() > deadline:
                    raise ServerFailed(f"the server that {variable} names does not answer: {error}") from error
                await asyncio.sleep(1)
            else:
                self._say(f"the server of {variable}: answers")
                return

    async def _say_what_is_there(self, port: int, before: int | None) -> None:
        url = f"http://127.0.0.1:{port}"
        for check in await self._in_database(checks):
            if not check.ok:
                self._say(f"{check.name}: {check.detail}. {check.mend}")
        await self._say_which_runs(port, before)
        lines = [f"Starloom: {url}"]
        if self._with_demo:
            made = await self._in_database(demo.begin)
            lines = [f"Watch the demo run:  {url}/runs/{made.run_id}", f"Login name:  {made.username}"]
            lines.append(f"Password:    {made.password or 'yours (lost? python manage.py changepassword)'}")
        self._say("ready")
        self._say.show(box([*lines, "Ctrl-C stops it, `make stop` does from elsewhere"]))

    async def _say_which_runs(self, port: int, before: int | None) -> None:
        going_on = await self._in_database(rest.at_work)
        if going_on:
            self._say(f"{_runs(going_on)} going on")
        if going_on and before not in (None, port):
            self._say(
                f"engines that were started when the platform was at port {before} cannot reach it at {port}: "
                "their pages fill when they end"
            )
        stopped = await self._in_database(lambda: [run.name for run in rest.stopped_by_shutdown()])
        if stopped:
            self._say(
                f"{_runs(len(stopped))} stopped by the last shutdown: {', '.join(stopped)}. "
                "Resume them on their pages, or all with `python manage.py resume_runs`"
            )

    # Down

    async def _go_down(self, *, came_up: bool) -> None:
        self._say("stopping")
        runs_go_on = not (came_up and not self._keep_runs and await self._runs_at_rest()) and self._engines_left()
        if runs_go_on and "sandbox" in self._keepers:
            await self._keepers.pop("sandbox").let_go()
        await asyncio.to_thread(connection.close_pool)  # type: ignore[attr-defined]
        for names in _DOWN_ORDER:
            await asyncio.gather(*(self._keepers[name].stop() for name in names if name in self._keepers))
        if self._listener is not None:
            self._listener.close()
        if not runs_go_on:
            await asyncio.to_thread(parts.end_left_behind, self._var, 5)
            await asyncio.to_thread(shutil.rmtree, self._var.sockets, ignore_errors=True)
        self._say("stopped")

    def _engines_left(self) -> bool:
        """Whether engines go on without us; said."""
        left = len(rest.living_engines(self._var))
        if left:
            node = ", and the sandbox node with them" if "sandbox" in self._keepers else ""
            self._say(f"{_runs(left)} going on{node}; the next `up` takes them up")
        return left > 0

    async def _runs_at_rest(self) -> bool:
        try:
            await self._bring_runs_to_rest()
        except (DatabaseError, LaunchFailed) as error:
            self._say(f"runs could not be stopped: {error}")
            return False
        return True

    async def _bring_runs_to_rest(self) -> None:
        """Checkpoint and stop, for which an engine finishes its step; those that take too long are killed."""
        asked = await self._in_database(rest.ask_for_a_stop)
        if not await self._in_database(rest.at_work):
            return
        self._say(f"{_runs(len(asked))} asked for a checkpoint: {', '.join(asked)}; Ctrl-C again does not wait")
        left = await self._until_rest(_REST_S)
        if left:
            self._say(f"killing the engines of {_runs(left)}; they can be resumed from the last checkpoint")
            await asyncio.to_thread(rest.kill_engines)
            self._hurry.clear()
            left = await self._until_rest(_KILLED_S)
        self._say(f"{_runs(left)} did not come to rest" if left else "all runs are at rest")

    async def _until_rest(self, seconds: float) -> int:
        """How many runs are left at work when none is, the time is over, or we are told to hurry."""
        deadline = time.monotonic() + seconds
        told = 0.0
        while (left := await self._in_database(rest.at_work)) and not self._hurry.is_set():
            now = time.monotonic()
            if now > deadline:
                break
            if now - told >= 5:
                self._say(f"waiting for {_runs(left)}, {deadline - now:.0f} s left")
                told = now
            await asyncio.sleep(0.25)
        return left

    async def _in_database(self, work: Callable[[], T]) -> T:
        """Do something that may ask the database, in a thread, and leave no connection behind."""

        def closing() -> T:
            try:
                return work()
            finally:
                connections.close_all()

        return await asyncio.to_thread(closing)


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"
