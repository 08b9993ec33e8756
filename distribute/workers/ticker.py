"""Threads: a periodic one, for all watchers, and one with a limited wait."""

import threading
from collections.abc import Callable


class Ticker:
    """Owns a thread that calls `tick()` every `pause` seconds, until that returns False or `stop` is called.

    The thread is made when it starts: a child process, from Python 3.13, cannot start one that was made before the fork.
    """

    def __init__(self, name: str, tick: Callable[[], bool], pause: float) -> None:
        self._name, self._tick, self._pause = f"unisono-{name}", tick, pause
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 0.0) -> None:
        """End the thread after its current tick, and wait at most `seconds` for that."""
        self._ended.set()
        if seconds and self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._ended.wait(self._pause) and self._tick():
            pass


def run_in_time(name: str, job: Callable[[], object], seconds: float) -> bool:
    """Run `job()` in a thread; return whether it has ended within `seconds`. Raise the error of `job`."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            job()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, name=f"unisono-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return not thread.is_alive()
