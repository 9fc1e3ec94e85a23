"""Children forked ahead of need: the spares of one kind of zygote.

A spare is locked down and waits for its program, so that a call waits for neither. Its scratch folder has a fixed size,
so spares are kept for the size that was last asked for; a call that finds none has a child forked on the spot.
"""

from collections import deque

from sandbox.backend.forkserver.berths import Berths
from sandbox.backend.forkserver.child import Child
from sandbox.backend.forkserver.link import ZygoteLink
from sandbox.backend.forkserver.zygotes import Zygotes
from sandbox.contract import SandboxBusy


class Spares:
    """Up to `most` waiting children of `zygotes`; `family` holds every child that was not released."""

    def __init__(self, zygotes: Zygotes, berths: Berths, most: int, family: set[Child]) -> None:
        self._zygotes, self._berths, self._most, self._family = zygotes, berths, most, family
        self._waiting: deque[Child] = deque()
        self._scratch_mb = 0  # of those that wait; 0: nothing was asked for yet
        self._last_asked = 0

    async def take(self, scratch_mb: int) -> Child:
        """A child that has a process, though it may not be locked down yet; the caller must release it.

        Raises `CallLost`, `SandboxBusy`, `SandboxUnavailable`.
        """
        self._note_size(scratch_mb)
        spare = self._waiting_one() if scratch_mb == self._scratch_mb else None
        child = spare or self._spawn(await self._zygotes.get(), scratch_mb)
        try:
            await child.born
        except BaseException:
            release_when_ended(child)
            raise
        return child

    def _note_size(self, scratch_mb: int) -> None:
        """Keep spares of another size once two calls in a row asked for it: one odd call must not cost all of them."""
        if scratch_mb != self._scratch_mb and self._last_asked in (0, scratch_mb):
            self._scratch_mb = scratch_mb
            self.discard()
        self._last_asked = scratch_mb

    def _waiting_one(self) -> Child | None:
        while self._waiting:
            child = self._waiting.popleft()
            if not child.ended.done():
                return child
            child.release()
        return None

    def _spawn(self, zygote: ZygoteLink, scratch_mb: int) -> Child:
        child = Child(self._berths.take(), scratch_mb, zygote_hangs=zygote.kill, on_release=self._released)
        self._family.add(child)
        zygote.spawn(child)
        return child

    def refill(self) -> None:
        """Order the children that are missing. Without a living zygote none is: the next call starts one."""
        while len(self._waiting) < self._most and self._scratch_mb and (zygote := self._zygotes.ready()):
            try:
                self._waiting.append(self._spawn(zygote, self._scratch_mb))
            except SandboxBusy:  # sessions took the places: calls do without spares
                return

    def discard(self) -> None:
        """Let go of those that wait."""
        while self._waiting:
            release_when_ended(self._waiting.popleft())

    def _released(self, child: Child) -> None:
        self._family.discard(child)
        self._berths.give_back(child.berth)


def release_when_ended(child: Child) -> None:
    """Kill a child that nobody waits for any more."""
    child.kill()
    if child.ended.done():
        child.release()
    else:
        child.ended.add_done_callback(lambda _: child.release())
