"""A parameter server that is stopped but not dead: noticed, and what waits for it ended.

Such a server listens, and the kernel confirms what is sent to it, so that whoever reads a variable waits for ever inside
of TensorFlow, where nothing can interrupt it. A thread asks every server for a small answer while a model is trained.
When one stays silent, the coordinator's own connections to it are shut down: TensorFlow then raises `UnavailableError`
wherever it waits for that server.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

from ..workers.connections import end_connections
from ..workers.ticker import Ticker


class ServerWatch:
    """Owns a thread for each server, which asks it while `watching()` is entered.

    Args:
        addresses: of the servers, "host:port".
        responds: `responds(index, seconds)`: whether a server runs a small operation in time. One that is dead, too,
            gives False; that it is dead is for others to say.
        listens: `listens(index)`: whether its process is there.
        timeout: () -> float; seconds of silence after which it is an error.

    Attributes:
        complaint: str or None; a sentence that names the server which was silent.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        responds: Callable[[int, float], bool],
        listens: Callable[[int], bool],
        timeout: Callable[[], float],
    ) -> None:
        self._addresses, self._responds, self._listens = list(addresses), responds, listens
        self._timeout = timeout
        self._entered = 0
        self._tickers: list[Ticker] = []
        self.complaint: str | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Asks all servers until the block is left. May be entered again inside of itself."""
        self._entered += 1
        try:
            if self._entered == 1:
                self.complaint = None
                self._tickers = [
                    Ticker("server-watch", functools.partial(self._look, index), lambda: self._timeout() / 4)
                    for index in range(len(self._addresses))
                ]
                for ticker in self._tickers:
                    ticker.start()
            yield
        finally:
            self._entered -= 1
            if not self._entered:
                for ticker in self._tickers:
                    ticker.stop()

    def _look(self, index: int) -> bool:
        """Asks one server; False once its silence has been complained about."""
        seconds = self._timeout()
        # Asked twice: the first answer may have come in while something held Python's lock all the time.
        again = max(seconds / 4, min(seconds, 20.0))
        if self._responds(index, 0.75 * seconds) or self._responds(index, again):
            return True
        if not self._entered or not self._listens(index):
            return True
        address = self._addresses[index]
        self.complaint = (
            f"The parameter server {index} at {address} listens but has done nothing for {seconds:g} s: end that "
            "process and start the cluster again; a fit with `BackupAndRestore` then continues from the last backup."
        )
        end_connections(address)
        return False
