"""The thread that writes or uploads files while training goes on."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Runs one job at a time in a thread, so at most one snapshot is in memory; its errors are raised in the main thread.

    The interpreter waits for a running job when the main thread ends.
    """

    def __init__(self) -> None:
        self._running: tuple[Future[object], ThreadPoolExecutor] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._running is not None and not self._running[0].done()

    def submit(self, job: Callable[[], object]) -> None:
        """Start `job` in the background, after the one before it has ended; raise what that one raised."""
        self.wait()
        executor = ThreadPoolExecutor(1, "unisono-backup")
        self._running = executor.submit(job), executor

    @property
    def pending(self) -> Future[object] | None:
        """The running job."""
        return None if self._running is None else self._running[0]

    def raise_error(self) -> None:
        """Raise the error of a job that has ended, once."""
        if not self.busy:
            self.wait()

    def wait(self) -> None:
        """Wait until the running job has ended, and raise its error."""
        if self._running is None:
            return
        future, executor = self._running
        executor.shutdown()
        self._running = None
        future.result()
