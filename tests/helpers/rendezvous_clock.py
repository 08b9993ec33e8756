"""A rendezvous whose time runs out when a test says so, not while a busy machine has not yet started a thread."""

import threading

from helpers import Clock, set_clock

from unisono.distribute.workers import lines, newcomers, rendezvous
from unisono.distribute.workers.addresses import connect

NEVER = 1e4  # seconds
_tell = lines.tell


class RendezvousClock(Clock):
    """Stands still until a test ends the rendezvous, which has the timeout NEVER."""

    def __init__(self, monkeypatch) -> None:
        super().__init__()
        self._joined = threading.Semaphore(0)
        set_clock(monkeypatch, self, lines, newcomers, rendezvous)
        monkeypatch.setattr(rendezvous, "tell", self._count)

    def _count(self, connection, said) -> None:
        _tell(connection, said)
        if "left" in said:
            self._joined.release()

    def end(self, address: str, joined: int) -> None:
        """Lets the timeout pass for worker 0, at this address, once so many others have joined."""
        for _ in range(joined):
            assert self._joined.acquire(timeout=250), "a worker did not join"
        self.now += NEVER
        connect(address, NEVER).close()  # ends the wait of worker 0

    def sleep(self, seconds: float) -> None:
        """Sleeps: those who ask again and again do so for no time of the rendezvous."""
        threading.Event().wait(seconds)
