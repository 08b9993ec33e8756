"""Detects servers that hang or are gone, so that everything that waits for them gets an error."""

import contextlib
import functools
import time
from collections.abc import Mapping

from .addresses import connect, end_connections, keep_alive, listens
from .lines import hear, is_grpc
from .ticker import Ticker

_ANSWER = 2.0  # timeout in seconds for one answer
_TICK = 2.0  # seconds between two connections, at most
_AGAIN = 0.2  # seconds until a process that does not listen is asked once more


def answers(address: str, seconds: float = _ANSWER) -> bool:
    """Return whether a gRPC server at "host:port" answers in time; a stopped process merely accepts connections."""
    heard = bytearray()
    with contextlib.suppress(OSError), connect(address, seconds) as connection:
        hear(connection, heard, time.monotonic() + seconds)
    return is_grpc(heard)


class ServerWatch:
    """Owns the threads that connect to the servers, which are "host:port" by number. Context: host.

    A live server answers a connection at once, even under load. After `timeout` seconds, the connections to a silent one are
    closed, which TensorFlow treats as the death of that process: everything that waits for it fails.
    """

    def __init__(self, addresses: Mapping[int, str], timeout: float) -> None:
        self.addresses, self.timeout = dict(addresses), timeout
        self._silent: set[int] = set()
        self._silent_since: dict[int, float] = {}
        self._pause = min(_TICK, timeout / 4)
        self._tickers = [
            Ticker(f"server-watch-{number}", functools.partial(self._check, number), self._pause)
            for number in self.addresses
        ]

    def start(self) -> None:
        """Start the threads."""
        for ticker in self._tickers:
            ticker.start()

    def stop(self) -> None:
        """End the threads, in a bounded time."""
        for ticker in self._tickers:
            ticker.stop()
        for ticker in self._tickers:
            ticker.stop(_ANSWER + self._pause)

    def find_lost(self) -> dict[int, str]:
        """Return the problem of each lost server: it was silent for too long, or nothing listens at its address now."""
        found = {}
        for number, address in self.addresses.items():
            if number in self._silent:
                found[number] = (
                    f"has not answered for {self.timeout:g} s (UNISONO_TIMEOUT): it hangs, or its machine is gone"
                )
            elif not self._listens(address):
                found[number] = "does not answer: it has died, or its machine is gone"
        return found

    @staticmethod
    def _listens(address: str) -> bool:
        if listens(address, _ANSWER):
            return True
        time.sleep(_AGAIN)
        return listens(address, _ANSWER)

    def _check(self, number: int) -> bool:
        """Connect to one server; close the connections to it once it has been silent for too long."""
        address, began = self.addresses[number], time.monotonic()
        if number not in self._silent:
            keep_alive(address, self.timeout)
            if answers(address, min(_ANSWER, self.timeout / 2)):
                self._silent_since.pop(number, None)
            elif time.monotonic() - self._silent_since.setdefault(number, began) >= self.timeout:
                self._silent.add(number)
        if number in self._silent:
            end_connections(address)  # also those that TensorFlow has made again since
        return True
