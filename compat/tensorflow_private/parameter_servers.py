"""The coordinator of parameter servers: its workers, its queue, and sharded variables."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..shared_change import share_attribute
from ..upstream_places import WorkerPreemptionHandler, coordinator_context, tensorflow_server_pb2


class _PartialRecovery(WorkerPreemptionHandler):
    """Reconnects to the available workers. TensorFlow's own version waits until all are available, possibly for ever."""

    answers: Callable[[str, int], bool]
    whole: Any

    @property
    def _server_def(self) -> Any:
        """The cluster without unreachable workers. Read before each attempt to reconnect."""
        definition = tensorflow_server_pb2.ServerDef()
        definition.CopyFrom(self.whole)
        for job in definition.cluster.job:
            if job.name == "worker":
                for index in [i for i in job.tasks if not self.answers("worker", i)]:
                    del job.tasks[index]
        return definition

    def _validate_preemption_failure(self, e: Exception) -> None:
        """Raise `e` unless it reports a lost worker. TensorFlow does not support a cluster with missing workers."""
        # The operation found its worker on the list of devices, but no longer on that of connections.
        left_out = isinstance(e, tf.errors.InvalidArgumentError) and "Client for target /job:worker" in str(e)
        if not left_out or self._cluster.closure_queue._cancellation_mgr.is_cancelled:
            super()._validate_preemption_failure(e)


def recover_in_part(coordinator: Any, answers: Callable[[str, int], bool]) -> None:
    """Let the coordinator continue after a loss with the workers for which `answers("worker", index)` is true."""
    handler = coordinator._cluster.failure_handler
    if type(handler) is not WorkerPreemptionHandler:
        return
    whole = handler.__dict__.pop("_server_def")
    handler.__class__ = _PartialRecovery
    handler.__dict__.update(whole=whole, answers=answers)


def let_assign(part: Any, variable: Any, places: Any) -> Any:
    """Return the slice of a variable at these places, with the method that assigns it, which a cached read lacks."""
    part.assign = lambda value, name=None: variable._v[places].assign(value, name)
    return part


def schedule_python(coordinator: Any, fn: Callable[[], None]) -> None:
    """Call `fn()` in the thread of some worker, with that worker as default device: `schedule` does not tell the worker."""
    coordinator._cluster.schedule(fn, None, None)


def current_worker() -> int:
    """Return the number of this thread's worker. Context: host, in a function of `schedule_python`."""
    dispatch: Any = coordinator_context.get_current_dispatch_context()
    return int(dispatch.worker_index)


def find_scheduled_error(coordinator: Any) -> BaseException | None:
    """Return the error that ended a scheduled function, or None; `join` would raise it."""
    return coordinator._cluster.closure_queue._error


def join_for(coordinator: Any, seconds: float) -> bool:
    """Wait until all scheduled functions have ended, and raise their error; False if they have not in `seconds`."""
    return bool(coordinator._cluster.closure_queue.wait(timeout=seconds))


def mark_scheduled(strategy: tf.distribute.Strategy) -> contextlib.AbstractContextManager[None]:
    """Mark the code traced here as scheduled; without the mark the strategy warns."""
    return share_attribute(strategy.extended, "_being_scheduled", lambda _: True)


def resolver_of(strategy: tf.distribute.Strategy) -> Any:
    """Return the cluster resolver of a `ParameterServerStrategy`; its public property is None."""
    return strategy.cluster_resolver or strategy._cluster_resolver


def num_workers_of(strategy: tf.distribute.Strategy) -> int:
    """Return the workers of a `ParameterServerStrategy`."""
    return len(resolver_of(strategy).cluster_spec().as_dict()["worker"])
