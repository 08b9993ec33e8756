"""TensorFlow's coordination service for workers, and how a MultiWorkerMirroredStrategy starts."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2

from ..patches import wrap
from ..upstream import need
from ..upstream_places import CollectiveAllReduceExtended, context


def configure_coordination(
    leader: str, jobs: Sequence[tuple[str, int]], heartbeat_seconds: float, shutdown_seconds: float
) -> None:
    """Set the timeouts with which workers detect that a peer has died, before TensorFlow starts the coordination service.

    The task on the device `leader` runs it. `jobs` are task types and the number of their tasks. After `heartbeat_seconds`
    of silence a task counts as dead; one that ends waits `shutdown_seconds` for the others to end.
    """
    if context.context().coordination_service is not None:
        return
    Job: Any = coordination_config_pb2.CoordinatedJob  # pyright: ignore[reportAttributeAccessIssue]
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=leader,
        heartbeat_timeout_in_ms=int(1000 * heartbeat_seconds),
        shutdown_barrier_timeout_in_ms=int(1000 * shutdown_seconds),
        coordinated_jobs=[Job(name=n, num_tasks=k) for n, k in jobs],
    )


def send_in_pieces(size: int) -> None:
    """Send collectives in chunks of `size` bytes (TensorFlow: 4,096), unless a `ConfigProto` of the program says so."""
    config = context.context()._config or tf.compat.v1.ConfigProto()
    if not config.experimental.recv_buf_max_chunk:
        config.experimental.recv_buf_max_chunk = size
    context.context()._config = config


def set_value(key: str, value: str) -> None:
    """Store a value on the coordination service; a key can be set once."""
    context.context().set_config_key_value(key, value)


def get_value(key: str, timeout_seconds: float) -> str:
    """Wait for a key to be set; a tf.errors.DeadlineExceededError if it was not in time."""
    return context.context().get_config_key_value(key, max(1, int(1000 * timeout_seconds)))


def delete_value(key: str) -> None:
    """Delete a key."""
    context.context().delete_config_key_value(key)


def abort_collectives(message: str) -> None:
    """End every collective of this process, now and later, with an UnavailableError with the text `message`."""
    context.context().abort_collective_ops(tf.errors.UNAVAILABLE, message)


def report_error(message: str) -> None:
    """End the collectives of every worker, with an error with the text `message`."""
    context.context().report_error_to_cluster(tf.errors.INTERNAL, message)


def guard_multi_worker_strategies(
    check: Callable[[], object],
    join: Callable[[Any, Callable[[], None]], None],
    count_cpu_replicas: Callable[[], int],
    creating: Callable[[], contextlib.AbstractContextManager[None]],
    compare: Callable[[tf.distribute.Strategy, str, str], None],
) -> None:
    """Change how every later MultiWorkerMirroredStrategy starts, whoever creates it.

    `check` is called before TF_CONFIG is read, and `join(cluster_resolver, start)` instead of `start()`, which joins the
    cluster. `count_cpu_replicas` gives the replicas of a worker without accelerators, one on each logical CPU device.
    `creating` is entered while workers create a variable: the initial values come from the chief. Before that,
    `compare(strategy, name, "float32[3, 4]")` is called.
    """

    class Guarded(CollectiveAllReduceExtended):
        """The strategy's `extended`."""

        def _initialize_multi_worker(self, cluster_resolver: Any) -> None:
            join(cluster_resolver, lambda: super(Guarded, self)._initialize_multi_worker(cluster_resolver))

        def _initialize_local_devices(
            self, cluster_resolver: Any, worker_device: str
        ) -> tuple[tuple[str, ...], str]:
            found, kind = super()._initialize_local_devices(cluster_resolver, worker_device)
            if kind == "CPU":
                found = tuple(f"{worker_device}/device:CPU:{i}" for i in range(count_cpu_replicas()))
            return found, kind

        def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
            given, dtype, name = kwargs["initial_value"], kwargs.get("dtype"), str(kwargs.get("name"))

            def initial_value() -> Any:
                value = given() if callable(given) else given
                tensor = tf.convert_to_tensor(getattr(value, "wrapped_value", value), dtype)
                compare(self._container_strategy(), name, f"{tensor.dtype.name}{tensor.shape}")
                return value

            with creating():
                return super()._create_variable(next_creator, **{**kwargs, "initial_value": initial_value})

    def initialize_strategy(original: Any, self: Any, cluster_resolver: Any, devices: Any) -> None:
        need("Training on several workers")
        reads = isinstance(cluster_resolver, tf.distribute.cluster_resolver.TFConfigClusterResolver)
        if not devices and reads:
            check()
        self.__class__ = type(type(self).__name__, (Guarded, type(self)), {})
        original(self, cluster_resolver, devices)

    wrap("_initialize_strategy", initialize_strategy)
