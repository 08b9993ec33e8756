"""Everything private of TensorFlow that parameter servers need; `test_parameter_server_internals.py` guards each of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import coordinator_context
from tensorflow.python.distribute.sharded_variable import ShardedVariable

__all__ = ["ShardedVariable"]


def schedule_python(coordinator: Any, fn: Callable[[], None]) -> None:
    """Has some worker's thread call `fn()`, with that worker as the default device.

    The public `schedule` takes a `tf.function` only, which cannot know by which worker it is run.
    """
    coordinator._cluster.schedule(fn, None, None)


def current_worker() -> int:
    """The number of the worker whose thread this is. Context: host, in a function of `schedule_python`."""
    return int(coordinator_context.get_current_dispatch_context().worker_index)


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


def is_stateful(operation: tf.Operation) -> bool:
    """Whether the operation reads or changes anything but its inputs."""
    return bool(operation.op_def.is_stateful) or operation.type in ("While", "If", "PartitionedCall")


def resolver_of(strategy: tf.distribute.Strategy) -> Any:
    """The cluster resolver that a `ParameterServerStrategy` was made with; its public property is None."""
    return strategy.cluster_resolver or strategy._cluster_resolver
