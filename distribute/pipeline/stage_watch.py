"""A stage that hangs or is gone: noticed from outside, and whoever waits for it gets an error.

TensorFlow waits for ever for a process that is stopped and for a machine that fell silent. So a thread for each stage's
process asks it again and again, at its gRPC port, whether it is there: a server that lives says so at once, however
much it has to compute. Once it has not for too long, the connections to it are ended, which TensorFlow takes as
the death of that process: everything that waits for it fails, in a function or outside of one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from ..workers.connections import end_connections, keep_alive
from ..workers.roll_call import ask, is_grpc

_ANSWER = 2.0  # seconds that a process has for one answer
_TICK = 2.0  # seconds between two questions, at most


def answers(address: str, seconds: float = _ANSWER) -> bool:
    """Whether a gRPC server at "host:port" speaks up within `seconds`: a process that is stopped takes a connection only."""
    return is_grpc(ask(address, seconds))


class StageWatch:
    """Owns the threads that ask. Context: host; lives as long as the program.

    Args:
        addresses: "host:port" of each process, by its task.
        timeout: float; seconds without an answer after which a process is lost.
    """

    def __init__(self, addresses: Mapping[int, str], timeout: float) -> None:
        self.addresses, self.timeout = dict(addresses), timeout
        self._tick = min(_TICK, timeout / 4)
        self._silent: set[int] = set()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._watch, args=(task,), name=f"unisono-stage-watch-{task}", daemon=True
            )
            for task in self.addresses
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the threads, in a bounded time."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_ANSWER + self._tick)

    def lost(self) -> dict[int, str]:
        """For each process that is lost what is the matter with it. Asks those that have answered so far once more."""
        found = {}
        for task, address in self.addresses.items():
            if task in self._silent:
                found[task] = (
                    f"has not answered for {self.timeout:g} s (UNISONO_TIMEOUT): it hangs, or its machine is gone"
                )
            elif not answers(address) and not answers(address):
                found[task] = "does not answer: it has died, or its machine is gone"
        return found

    def _watch(self, task: int) -> None:
        address, since = self.addresses[task], None
        while not self._stop.wait(self._tick):
            began = time.monotonic()
            if task in self._silent:
                end_connections(address)  # also those that TensorFlow has made again since
                continue
            keep_alive(address, self.timeout)
            if answers(address, min(_ANSWER, self.timeout / 2)):
                since = None
                continue
            since = began if since is None else since
            if time.monotonic() - since >= self.timeout:
                self._silent.add(task)
                end_connections(address)
