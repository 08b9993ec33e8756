"""Work for the workers of a coordinator: each takes the next piece, and another worker gets the piece of a lost one.

TensorFlow's `ClusterCoordinator` provides one thread for each worker, and reconnects to workers that come back.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_private.parameter_servers import (
    current_worker,
    find_scheduled_error,
    join_for,
    recover_in_part,
    resolver_of,
    schedule_python,
)
from ..workers.addresses import listens
from ..workers.server_watch import ServerWatch, answers

_TICK = 0.2  # seconds between two checks for errors
_QUIET = 3.0  # seconds without a result until the servers are checked
_PROBE = 2.0  # timeout in seconds for accepting a connection
_RESPONSE = 20.0  # timeout in seconds for one answer of a worker


class ParameterServerError(RuntimeError):
    """A parameter server, or every worker, is gone: training cannot continue. A restart continues from the last backup."""


class WorkerPool:
    """The workers of one `ParameterServerStrategy`; no answer from any for `timeout` seconds is an error."""

    def __init__(self, strategy: Any, timeout: float) -> None:
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.timeout = timeout
        self.addresses = {k: list(v) for k, v in resolver_of(strategy).cluster_spec().as_dict().items()}
        self.num_workers = len(self.addresses["worker"])
        self._servers = self._new_watch()
        self._is_watching = False
        recover_in_part(self.coordinator, self.listens)

    def _new_watch(self) -> ServerWatch:
        return ServerWatch(dict(enumerate(self.addresses["ps"])), self.timeout)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the parameter servers until the block is left. Blocks may be nested."""
        if self._is_watching:
            yield
            return
        self._servers, self._is_watching = self._new_watch(), True
        self._servers.start()
        try:
            yield
        finally:
            self._servers.stop()
            self._is_watching = False

    @contextlib.contextmanager
    def phase(
        self, run: Callable[[int, Any], Any], forget: Callable[[int], Any], max_staleness: int | None = None
    ) -> Iterator[Phase]:
        """Start a loop on every worker; end them when the block is left.

        Raise a `ParameterServerError` if a server or every worker is lost, and an error of `run` unless a lost worker
        caused it.

        Args:
            run: `run(worker, piece)` computes a piece on that worker and returns its result on the host. Called in the
                worker's thread, and again on any worker if one was lost in the middle.
            forget: `forget(worker)`: the memory of the worker is lost.
            max_staleness: how many steps a worker may be ahead of the slowest.
        """
        phase = Phase(self, run, forget, max_staleness)
        for _ in range(self.num_workers):
            schedule_python(self.coordinator, phase.loop)
        try:
            yield phase
        except BaseException:
            phase.close()
            with contextlib.suppress(Exception):
                join_for(self.coordinator, self.timeout)
            raise
        phase.close()
        phase.end()

    def listens(self, kind: str, index: int) -> bool:
        """Return whether a process listens at the address of a task; a stopped one does."""
        return listens(self.addresses[kind][index], _PROBE)

    def check_servers(self, cause: BaseException | None = None) -> None:
        """Raise a `ParameterServerError` if a parameter server has died or hangs."""
        for index, problem in self._servers.find_lost().items():
            raise ParameterServerError(
                f"Parameter server {index} at {self.addresses['ps'][index]} {problem}. Restart the cluster: a fit with "
                "`BackupAndRestore` then continues from the last backup."
            ) from cause


class Phase:
    """Pieces of work in progress: `put` them, `get` their results in the order in which they arrive."""

    def __init__(self, pool: WorkerPool, run: Any, forget: Any, max_staleness: int | None) -> None:
        self._pool, self._run, self._forget = pool, run, forget
        self._max_staleness = max_staleness
        self._changed = threading.Condition()
        self._waiting: collections.deque[Any] = collections.deque()
        self._results: collections.deque[tuple[Any, Any]] = collections.deque()
        self._steps_of: dict[int, int] = {}
        self._closed = False
        self._holding: dict[int, Any] = {}
        self.under_way = 0
        self.losses = 0

    # Called by the coordinator.

    def put(self, piece: Any) -> None:
        """Add a piece; its attribute `steps` counts for `max_staleness`."""
        with self._changed:
            self._waiting.append(piece)
            self.under_way += 1
            self._changed.notify_all()

    def get(self) -> tuple[Any, Any]:
        """Wait for the next finished piece; return (piece, result). Raise as `WorkerPool.phase`."""
        quiet_since = time.monotonic()
        next_probe = quiet_since + _QUIET
        while True:
            with self._changed:
                if not self._results:
                    self._changed.wait(_TICK)
                if self._results:
                    self.under_way -= 1
                    return self._results.popleft()
            if find_scheduled_error(self._pool.coordinator) is not None:
                self.close()
                self.end()
            if time.monotonic() > next_probe:
                self._pool.check_servers()
                self._check_workers(quiet_since)
                next_probe = time.monotonic() + _QUIET

    def close(self) -> None:
        """Close the list: no worker takes another piece."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def end(self) -> None:
        """Wait until the loops have ended; raise the error that ended one of them."""
        try:
            deadline = time.monotonic() + self._pool.timeout
            while not join_for(self._pool.coordinator, _TICK):
                if time.monotonic() > deadline:
                    self._pool.check_servers()
                    raise ParameterServerError(
                        f"The workers did not finish within {self._pool.timeout:g} s: restart the cluster."
                    )
        except (tf.errors.OpError, TypeError) as error:
            self._pool.check_servers(error)
            raise

    def _check_workers(self, quiet_since: float) -> None:
        """Return, after `timeout` without a result, whether any worker is busy and makes progress."""
        pool = self._pool
        if time.monotonic() - quiet_since < pool.timeout:
            return
        with self._changed:
            at_work = sorted(self._holding)
        if not at_work and not any(pool.listens("worker", index) for index in range(pool.num_workers)):
            raise ParameterServerError(
                f"None of the {pool.num_workers} worker(s) has answered for {pool.timeout:g} s: restart them."
            )
        for index in at_work:
            address = pool.addresses["worker"][index]
            if pool.listens("worker", index) and not answers(address, min(_RESPONSE, pool.timeout)):
                raise ParameterServerError(
                    f"The worker {index} at {address} listens but does not answer, and no step has ended for "
                    f"{pool.timeout:g} s: stop that process and start it again."
                )

    # Called by the workers' threads.

    def loop(self) -> None:
        """Take pieces until the list is closed. Context: host, in the thread of a worker."""
        worker = current_worker()
        while not self._closed and not self._pool.listens("worker", worker):
            time.sleep(_TICK)
        with self._changed:
            self._steps_of[worker] = min(self._steps_of.values(), default=0)
        try:
            while (piece := self._take(worker)) is not None:
                try:
                    result = self._run(worker, piece)
                except BaseException:
                    self._give_back(worker, piece)
                    raise
                with self._changed:
                    self._holding.pop(worker, None)
                    self._steps_of[worker] += piece.steps
                    self._results.append((piece, result))
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._steps_of.pop(worker, None)
                self._changed.notify_all()

    def _take(self, worker: int) -> Any:
        with self._changed:
            while not self._closed and not (self._waiting and self._may_start(worker)):
                self._changed.wait()
            if self._closed:
                return None
            self._holding[worker] = self._waiting.popleft()
            return self._holding[worker]

    def _may_start(self, worker: int) -> bool:
        if self._max_staleness is None:
            return True
        ahead = self._steps_of[worker] + self._waiting[0].steps - min(self._steps_of.values())
        return ahead <= max(self._max_staleness, 1)

    def _give_back(self, worker: int, piece: Any) -> None:
        self._forget(worker)
        with self._changed:
            self.losses += 1
            self._holding.pop(worker, None)
            self._waiting.appendleft(piece)
            self._changed.notify_all()
