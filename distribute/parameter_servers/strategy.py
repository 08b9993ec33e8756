"""`ParameterServerStrategy`: TensorFlow's class, with a check of the cluster and a bound on staleness."""

import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ...compat.register import SERVERS
from ...compat.tensorflow_private.parameter_servers import resolver_of
from ...compat.upstream import need
from ..arguments import number, show, whole_number
from ..environment import peer_timeout
from ..workers.cluster import ClusterError, read_cluster
from .worker_pool import WorkerPool

_pools: weakref.WeakKeyDictionary[Any, WorkerPool] = weakref.WeakKeyDictionary()


class ParameterServerStrategy(tf.distribute.experimental.ParameterServerStrategy):
    """`tf.distribute.ParameterServerStrategy` that first checks its cluster, and limits how far apart workers may be.

    Args:
        cluster_resolver: describes the cluster. None: TF_CONFIG does.
        variable_partitioner: as in TensorFlow: shards large variables over servers by their first axis.
        max_staleness: int or None; no worker runs more than this many steps ahead of the slowest. None: no bound.
        backup_workers: removed.
        timeout: float; seconds after which a lost cluster raises an error. None: the launcher's value, else 60.

    Raises:
        ValueError: the cluster or an argument is wrong. Training raises a `ParameterServerError` if it loses a server.

    Context: host, only on the coordinator. Workers and servers run `python -m unisono.distribute.server`.

    Examples:
        >>> strategy = unisono.distribute.ParameterServerStrategy(max_staleness=8)
        Traceback (most recent call last):
        ClusterError: `cluster_resolver` is missing and TF_CONFIG is not set: start the script with `python -m unisono ...
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Any = None,
        *,
        max_staleness: int | None = None,
        backup_workers: None = None,
        timeout: float | None = None,
    ) -> None:
        need(SERVERS)
        if cluster_resolver is None:
            if read_cluster() is None:
                raise ClusterError(
                    "`cluster_resolver` is missing and TF_CONFIG is not set: start the script with "
                    "`python -m unisono launch --workers N --parameter-servers M`, or describe the cluster in TF_CONFIG."
                )
            cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if not isinstance(cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver):
            raise TypeError(
                "`cluster_resolver` must be a tf.distribute.cluster_resolver.ClusterResolver, or None for the cluster of "
                f"TF_CONFIG. Received: {show(cluster_resolver)}"
            )
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise TypeError(
                "`variable_partitioner` must be a tf.distribute.experimental.partitioners.Partitioner or None. "
                f"Received: {show(variable_partitioner)}"
            )
        check_cluster(cluster_resolver.cluster_spec().as_dict(), cluster_resolver.task_type)
        if backup_workers is not None:
            raise ValueError(
                "`backup_workers` was removed: train synchronously with tf.distribute.MultiWorkerMirroredStrategy, or "
                f"limit how far apart workers may be with `max_staleness`. Received: backup_workers={show(backup_workers)}"
            )
        whole_number("max_staleness", max_staleness, optional=True)
        number("timeout", timeout, above=0, finite=False, optional=True)
        seconds = peer_timeout() if timeout is None else timeout
        super().__init__(cluster_resolver, variable_partitioner)
        self.max_staleness, self.timeout = max_staleness, seconds


def check_cluster(jobs: Mapping[str, Any], task_type: str | None) -> None:
    """Raise a ClusterError for a cluster (task type -> addresses) that cannot train with parameter servers."""
    for kind, word in (("worker", "worker"), ("ps", "parameter server")):
        if not jobs.get(kind):
            raise ClusterError(
                f"The cluster has no {word}: name at least one address for {kind!r}. Received: {sorted(jobs)}"
            )
    unknown = sorted(set(jobs) - {"chief", "worker", "ps", "evaluator"})
    if unknown:
        raise ClusterError(
            f"The cluster has the unknown task type {unknown[0]!r}: use chief, worker, ps and evaluator."
        )
    if len(jobs.get("chief", ())) > 1:
        raise ClusterError(f"The cluster has {len(jobs['chief'])} chiefs: one coordinator runs the script.")
    if task_type in ("worker", "ps"):
        raise ClusterError(
            f"This process is a {task_type!r} of the cluster, but only the coordinator ('chief') runs the script: "
            "run `python -m unisono.distribute.server` here, or start all with `python -m unisono launch`."
        )


def pool_of(strategy: Any) -> WorkerPool:
    """Return the workers of a strategy; created once."""
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"Each worker sees {strategy.num_replicas_in_sync} GPUs, but a worker of a ParameterServerStrategy trains "
            "with one: start one worker per GPU, each with a separate CUDA_VISIBLE_DEVICES."
        )
    if strategy not in _pools:
        resolver = resolver_of(strategy)
        check_cluster(resolver.cluster_spec().as_dict(), resolver.task_type)
        timeout = strategy.timeout if isinstance(strategy, ParameterServerStrategy) else peer_timeout()
        _pools[strategy] = WorkerPool(strategy, timeout)
    return _pools[strategy]
