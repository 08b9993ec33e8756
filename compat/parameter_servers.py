"""The coordinator of parameter servers: its workers, its queue, and variables in parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.distribute.coordinator import cluster_coordinator, coordinator_context
from tensorflow.python.distribute.sharded_variable import ShardedVariable

__all__ = ["ShardedVariable"]


class _PartialRecovery(cluster_coordinator.WorkerPreemptionHandler):
    """Reconnects to the workers that are there. TensorFlow's own waits until all of them are, for ever if need be."""

    answers: Callable[[str, int], bool]
    whole: Any

    @property
    def _server_def(self) -> Any:
        """The cluster without the workers that do not answer. Read before each attempt to reconnect."""
        definition = tensorflow_server_pb2.ServerDef()
        definition.CopyFrom(self.whole)
        for job in definition.cluster.job:
            if job.name == "worker":
                for index in [i for i in job.tasks if not self.answers("worker", i)]:
                    del job.tasks[index]
        return definition

    def _validate_preemption_failure(self, e: Exception) -> None:
        """Raises `e` unless it says that a worker was lost. TensorFlow knows no cluster from which one is left out."""
        queue = self._cluster.closure_queue
        if not (_left_out(e) and not queue._cancellation_mgr.is_cancelled):
            super()._validate_preemption_failure(e)


def _left_out(error: Exception) -> bool:
    """Whether an operation found its worker on the list of devices, but no longer on that of connections."""
    return isinstance(error, tf.errors.InvalidArgumentError) and "Client for target /job:worker" in str(error)


def recover_in_part(coordinator: Any, answers: Callable[[str, int], bool]) -> None:
    """Has the coordinator go on with the workers for which `answers("worker", index)` is true when one was lost."""
    handler = coordinator._cluster.failure_handler
    if type(handler) is not cluster_coordinator.WorkerPreemptionHandler:
        return
    whole = handler.__dict__.pop("_server_def")
    handler.__class__ = _PartialRecovery
    handler.__dict__.update(whole=whole, answers=answers)


def schedule_python(coordinator: Any, fn: Callable[[], None]) -> None:
    """Has some worker's thread call `fn()`, with that worker as the default device.

    The public `schedule` takes a `tf.function` only, which cannot know by which worker it is run.
    """
    coordinator._cluster.schedule(fn, None, None)


def current_worker() -> int:
    """The number of the worker whose thread this is. Context: host, in a function of `schedule_python`."""
    dispatch: Any = coordinator_context.get_current_dispatch_context()
    return int(dispatch.worker_index)


def scheduled_error(coordinator: Any) -> BaseException | None:
    """The error that ended a scheduled function, if there is one; `join` would raise it."""
    return coordinator._cluster.closure_queue._error


def join_for(coordinator: Any, seconds: float) -> bool:
    """Waits until all scheduled functions have ended; False if they have not in `seconds`.

    Raises:
        Exception: what one of them raised.
    """
    return bool(coordinator._cluster.closure_queue.wait(timeout=seconds))


@contextlib.contextmanager
def scheduling(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Tells the strategy that what is traced here will be scheduled; it warns otherwise."""
    extended = strategy.extended
    before = extended._being_scheduled
    extended._being_scheduled = True
    try:
        yield
    finally:
        extended._being_scheduled = before


def resolver_of(strategy: tf.distribute.Strategy) -> Any:
    """The cluster resolver that a `ParameterServerStrategy` was made with; its public property is None."""
    return strategy.cluster_resolver or strategy._cluster_resolver


def num_workers_of(strategy: tf.distribute.Strategy) -> int:
    """The workers of a `ParameterServerStrategy`."""
    return len(resolver_of(strategy).cluster_spec().as_dict()["worker"])
