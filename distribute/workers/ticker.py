"""Threads: a periodic one, for all watchers, and one with a limited wait."""

import threading
from collections.abc import Callable


class Ticker:
    """Owns a thread that calls `tick()` every `pause` seconds, until that returns False or `stop` is called."""

    def __init__(self, name: str, tick: Callable[[], bool], pause: float) -> None:
        self._tick, self._pause = tick, pause
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"unisono-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, seconds: float = 0.0) -> None:
        """End the thread after its current tick, and wait at most `seconds` for that."""
        self._ended.set()
        if seconds:
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
