"""A thread that writes one snapshot while training goes on; what goes wrong there is raised here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class BackgroundWriter:
    """Runs one job at a time. `submit` waits for the job before it, so at most one snapshot is in memory.

    Attributes:
        seconds: float; how long the last finished job took.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0

    @property
    def busy(self) -> bool:
        """Whether a job is under way."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, job: Callable[[], object]) -> None:
        """Starts `job` in the background, after the one before it has ended; raises what that one raised."""
        self.wait()
        # Not a daemon: the interpreter waits for a write under way when the main thread ends.
        self._thread = threading.Thread(target=self._run, args=(job,), name="unisono-backup")
        self._thread.start()

    def raise_error(self) -> None:
        """Raises the error of an earlier job, once."""
        if not self.busy and self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Waits until the job under way has ended, and raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.raise_error()

    def _run(self, job: Callable[[], object]) -> None:
        begin = time.monotonic()
        try:
            job()
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - begin
