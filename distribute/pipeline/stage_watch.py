"""A stage that hangs or is gone: noticed from outside, so that whatever waits for it gets an error.

TensorFlow waits without end for a process that is stopped and for a machine that is gone. So a thread for each stage's
process asks it again and again, at its gRPC port, whether it is there: a live server answers at once, however
much it has to compute. Once it has not for too long, the connections to it are ended, which TensorFlow takes as
the death of that process: everything that waits for it fails, in a function or outside of one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping

from ..workers.addresses import first_words, is_grpc
from ..workers.connections import end_connections, keep_alive
from ..workers.ticker import Ticker

_ANSWER = 2.0  # seconds that a process has for one answer
_TICK = 2.0  # seconds between two questions, at most


def answers(address: str, seconds: float = _ANSWER) -> bool:
    """Whether a gRPC server at "host:port" speaks up within `seconds`: a process that is stopped takes a connection only."""
    return is_grpc(first_words(address, seconds))


class StageWatch:
    """Owns the threads that ask. Context: host; lives as long as the program.

    Args:
        addresses: "host:port" of each process, by its task.
        timeout: float; seconds without an answer after which a process is lost.
    """

    def __init__(self, addresses: Mapping[int, str], timeout: float) -> None:
        self.addresses, self.timeout = dict(addresses), timeout
        self._pause = min(_TICK, timeout / 4)
        self._silent: set[int] = set()
        self._since: dict[int, float] = {}
        self._tickers = [
            Ticker(f"stage-watch-{task}", functools.partial(self._look, task), lambda: self._pause)
            for task in self.addresses
        ]

    def start(self) -> None:
        """Starts the threads."""
        for ticker in self._tickers:
            ticker.start()

    def stop(self) -> None:
        """Ends the threads, in a bounded time."""
        for ticker in self._tickers:
            ticker.stop()
        for ticker in self._tickers:
            ticker.stop(_ANSWER + self._pause)

    def lost(self) -> dict[int, str]:
        """For each lost process what is wrong with it. Asks those that have answered so far once more."""
        found = {}
        for task, address in self.addresses.items():
            if task in self._silent:
                found[task] = (
                    f"has not answered for {self.timeout:g} s (UNISONO_TIMEOUT): it hangs, or its machine is gone"
                )
            elif not answers(address) and not answers(address):
                found[task] = "does not answer: it has died, or its machine is gone"
        return found

    def _look(self, task: int) -> bool:
        """Asks one process; ends the connections to it once it has been silent for too long."""
        address, began = self.addresses[task], time.monotonic()
        if task not in self._silent:
            keep_alive(address, self.timeout)
            if answers(address, min(_ANSWER, self.timeout / 2)):
                self._since.pop(task, None)
            elif time.monotonic() - self._since.setdefault(task, began) >= self.timeout:
                self._silent.add(task)
        if task in self._silent:
            end_connections(address)  # also those that TensorFlow has made again since
        return True
