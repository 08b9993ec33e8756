"""A thread that writes one backup while training goes on; its errors are raised in the main thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Runs one job at a time. `submit` waits for the job before it, so at most one snapshot is in memory."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, job: Callable[[], object]) -> None:
        """Starts `job` in the background, after the one before it has ended; raises what that one raised."""
        self.wait()
        # Not a daemon: the interpreter waits for a running write when the main thread ends.
        self._thread = threading.Thread(target=self._run, args=(job,), name="unisono-backup")
        self._thread.start()

    def raise_error(self) -> None:
        """Raises the error of an earlier job, once."""
        if not self.busy and self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Waits until the running job has ended, and raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.raise_error()

    def _run(self, job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:
            self._error = error
