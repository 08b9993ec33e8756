"""`ParameterServerStrategy`: TensorFlow's class, with a check of the cluster and a choice of the training mode."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_private.parameter_servers import resolver_of
from ..arguments import number, shown, whole_number
from ..environment import peer_timeout
from ..workers.cluster import ClusterError, read_tf_config
from .worker_pool import WorkerPool

_modes: weakref.WeakKeyDictionary[Any, ParameterServerMode] = weakref.WeakKeyDictionary()
_pools: weakref.WeakKeyDictionary[Any, WorkerPool] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class ParameterServerMode:
    """How far workers may be ahead of each other.

    Attributes:
        max_staleness: int or None; no worker runs more than this many steps ahead of the slowest. None: no bound.
        backup_workers: int or None; None: asynchronous. b: synchronous, and the first N - b gradients of N workers make a
            step, so that no step waits for the b slowest.
        timeout: float; seconds after which a lost cluster is an error.
    """

    max_staleness: int | None = None
    backup_workers: int | None = None
    timeout: float = 60.0

    def check(self, num_workers: int) -> None:
        """Raises a `ValueError` that names the invalid argument."""
        for name, least in (("max_staleness", 1), ("backup_workers", 0)):
            whole_number(name, getattr(self, name), least, optional=True)
        if self.max_staleness is not None and self.backup_workers is not None:
            raise ValueError(
                "Give `max_staleness` (bounded asynchronous training) or `backup_workers` (synchronous training), not both. "
                f"Received: max_staleness={self.max_staleness} and backup_workers={self.backup_workers}"
            )
        if self.backup_workers is not None and self.backup_workers >= num_workers:
            raise ValueError(
                f"`backup_workers` ({self.backup_workers}) must be less than the number of workers ({num_workers}): "
                "a step needs at least one gradient."
            )
        number("timeout", self.timeout, above=0, finite=False)


class ParameterServerStrategy(tf.distribute.experimental.ParameterServerStrategy):
    """`tf.distribute.ParameterServerStrategy` that first checks its cluster and knows its training mode.

    Args:
        cluster_resolver: None: the cluster of TF_CONFIG.
        variable_partitioner: as in TensorFlow: shards large variables over servers by their first axis.
        max_staleness: int or None; no worker runs more than this many steps ahead of the slowest.
        backup_workers: int or None; None: asynchronous; b: synchronous, the first N - b of N gradients make a step.
        timeout: float; seconds after which a lost cluster is an error. None: the launcher's value, else 60.

    Raises:
        ValueError: the cluster or an argument is wrong; the message names the fix.

    Context: host, on the coordinator alone. Workers and servers run `python -m unisono.distribute.server`.
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Any = None,
        *,
        max_staleness: int | None = None,
        backup_workers: int | None = None,
        timeout: float | None = None,
    ) -> None:
        if cluster_resolver is None:
            if read_tf_config(os.environ) is None:
                raise ClusterError(
                    "`cluster_resolver` is missing and TF_CONFIG is not set: start the script with "
                    "`python -m unisono launch --workers N --parameter-servers M`, or describe the cluster in TF_CONFIG."
                )
            cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if not isinstance(cluster_resolver, tf.distribute.cluster_resolver.ClusterResolver):
            raise TypeError(
                "`cluster_resolver` must be a tf.distribute.cluster_resolver.ClusterResolver, or None for the cluster of "
                f"TF_CONFIG. Received: {shown(cluster_resolver)}"
            )
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise TypeError(
                "`variable_partitioner` must be a tf.distribute.experimental.partitioners.Partitioner or None. "
                f"Received: {shown(variable_partitioner)}"
            )
        spec = cluster_resolver.cluster_spec().as_dict()
        check_cluster(spec, cluster_resolver.task_type)
        mode = ParameterServerMode(
            max_staleness, backup_workers, peer_timeout() if timeout is None else timeout
        )
        mode.check(len(spec["worker"]))
        super().__init__(cluster_resolver, variable_partitioner)
        _modes[self] = mode


def check_cluster(jobs: Mapping[str, Any], task_type: str | None) -> None:
    """Rejects a cluster that cannot train with parameter servers.

    Args:
        jobs: task type -> addresses.
        task_type: of this process.

    Raises:
        ClusterError: (a ValueError) the cluster is not valid.
    """
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


def mode_of(strategy: Any) -> ParameterServerMode:
    """The mode of a strategy; TensorFlow's own class is asynchronous without a bound."""
    return _modes.get(strategy) or ParameterServerMode(timeout=peer_timeout())


def pool_of(strategy: Any) -> WorkerPool:
    """The workers of a strategy; created once."""
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"Each worker sees {strategy.num_replicas_in_sync} GPUs, but a worker of a ParameterServerStrategy trains "
            "with one: start one worker per GPU, each with a separate CUDA_VISIBLE_DEVICES."
        )
    if strategy not in _pools:
        resolver = resolver_of(strategy)
        check_cluster(resolver.cluster_spec().as_dict(), resolver.task_type)
        _pools[strategy] = WorkerPool(strategy, mode_of(strategy).timeout)
    return _pools[strategy]
