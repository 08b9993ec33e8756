"""The thread that writes or uploads files while training goes on."""

import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ....distribute.objects import StoreError
from ...safe_file import explain_going_on

Job = Callable[[], object]


class BackgroundWriter:
    """Runs one job at a time in a thread, so at most one snapshot is in memory; its errors are raised in the main thread.

    While training goes on, a store that does not answer causes a warning. The job is retried before the next one and at the
    end if it `repeats`; otherwise the next job makes up for it.

    The interpreter waits for a running job when the main thread ends.
    """

    def __init__(self, repeats: bool = False) -> None:
        self._repeats = repeats
        self._failed: list[Job] = []  # to be done again
        self._failures = 0  # since the last one that succeeded
        self._running: tuple[Future[object], list[Job], ThreadPoolExecutor] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._running is not None and not self._running[0].done()

    def submit(self, job: Job) -> None:
        """Start `job` in the background once the previous one has ended; raise what that one raised."""
        self.settle()
        self._start([*self._failed, job])

    def _start(self, jobs: list[Job]) -> None:
        executor = ThreadPoolExecutor(1, "unisono-backup")
        self._running = executor.submit(_do, jobs), jobs, executor

    @property
    def failed(self) -> bool:
        """Whether the last job failed, which was only warned of."""
        return self._failures > 0

    @property
    def pending(self) -> Future[object] | None:
        """The running job."""
        return None if self._running is None else self._running[0]

    def raise_error(self) -> None:
        """Raise the error of a job that has ended, once."""
        if not self.busy:
            self.settle()

    def settle(self) -> None:
        """Wait until the running job has ended, and raise its error; only warn if a store does not answer."""
        jobs = [] if self._running is None else self._running[1]
        try:
            self._end()
        except OSError as error:
            if not isinstance(error.__cause__, StoreError):
                raise
            self._failures += 1
            self._failed = jobs if self._repeats else []
            times = f" ({self._failures} saves have failed)" if self._failures > 1 else ""
            warnings.warn(explain_going_on(error, f"the next save tries again{times}"), stacklevel=2)

    def wait(self) -> None:
        """Wait until every job has ended, and raise the error: the last one, where nothing tries again."""
        if self._running is None and self._failed:
            self._start(self._failed)
        self._end()

    def _end(self) -> None:
        if self._running is None:
            return
        future, _, executor = self._running
        executor.shutdown()
        self._running, self._failed = None, []
        future.result()
        self._failures = 0


def _do(jobs: list[Job]) -> None:
    while jobs:
        jobs[0]()
        del jobs[0]
