"""A WebSocket client in the test's own loop: the application is called, no server is between. (Channels' own needs
daphne.)"""

import json
from typing import Any

from asgiref.testing import ApplicationCommunicator

from webapp.config.asgi import application

PATIENCE_S = 5


class Viewer(ApplicationCommunicator):
    """A browser that opens the socket of a run; ``session``: its cookie, if it is logged in."""

    def __init__(self, run_id: str, query: str = "", *, session: str | None = None, origin: str = "http://localhost"):
        headers = [(b"origin", origin.encode())]
        if session is not None:
            headers.append((b"cookie", f"starloom_session={session}".encode()))
        scope = {
            "type": "websocket",
            "path": f"/ws/v1/runs/{run_id}",
            "query_string": query.encode(),
            "headers": headers,
            "subprotocols": [],
        }
        super().__init__(application, scope)

    async def opens(self) -> bool:
        """Whether the socket is accepted."""
        await self.send_input({"type": "websocket.connect"})
        return bool((await self.receive_output(PATIENCE_S))["type"] == "websocket.accept")

    async def hears(self) -> dict[str, Any]:
        """The next message."""
        sent = await self.receive_output(PATIENCE_S)
        assert sent["type"] == "websocket.send", sent
        message: dict[str, Any] = json.loads(sent["text"])
        return message

    async def snapshot(self) -> dict[str, Any]:
        """Open, and the first message."""
        assert await self.opens()
        return await self.hears()

    async def closed_with(self) -> int:
        """The code it is closed with, after whatever else was said."""
        while (sent := await self.receive_output(PATIENCE_S))["type"] != "websocket.close":
            pass
        return int(sent["code"])

    async def goes(self) -> None:
        if not self.future.done():
            await self.send_input({"type": "websocket.disconnect", "code": 1001})
            await self.wait(PATIENCE_S)
