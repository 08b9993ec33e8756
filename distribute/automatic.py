"""The strategy for the devices and the cluster of this program: one machine, many, accelerators or none."""

from __future__ import annotations

import os
import warnings
from typing import Any

import tensorflow as tf

from .arguments import shown
from .environment import launched_task
from .hardware.devices import simulate_replicas
from .keras_distribution import strategy_of_scope
from .parameter_servers.strategy import ParameterServerStrategy
from .workers import cluster_start
from .workers.addresses import split_address
from .workers.cluster import Cluster, ClusterError, read_cluster, read_tf_config

# TensorFlow's strategies, for clusters without TF_CONFIG.
cluster_resolver = tf.distribute.cluster_resolver


def auto_strategy(communication_options: Any = None) -> tf.distribute.Strategy:
    """Picks the strategy for the machine and the cluster that this process belongs to.

    | found | strategy |
    |---|---|
    | a distribution that `keras.distribution.set_distribution` has set | that of `strategy_of` |
    | TF_CONFIG with parameter servers | `ParameterServerStrategy` (in the coordinator) |
    | TF_CONFIG or Slurm with several workers | `MultiWorkerMirroredStrategy` |
    | a TPU (TPU_NAME, or Cloud TPU's own variables) | `TPUStrategy` |
    | several GPUs, or several simulated devices | `MirroredStrategy` |
    | one GPU, or none | `OneDeviceStrategy` |

    Call it once, before TensorFlow's devices are used. `python -m unisono launch` sets TF_CONFIG, and
    UNISONO_REPLICAS_PER_WORKER, the number of CPU devices that a worker without GPUs creates.

    Args:
        communication_options: `tf.distribute.experimental.CommunicationOptions`, for several workers.

    Raises:
        ClusterError: TF_CONFIG or Slurm's variables are wrong, or mpirun or torchrun started the processes without them.
        TimeoutError: a worker did not start within UNISONO_TIMEOUT seconds (60).

    Examples:
        >>> strategy = unisono.distribute.auto_strategy()
        >>> with strategy.scope():
        ...     model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    """
    # The public name creates instances of another class.
    known = type(tf.distribute.experimental.CommunicationOptions())
    if communication_options is not None and not isinstance(communication_options, known):
        raise TypeError(
            "`communication_options` must be a tf.distribute.experimental.CommunicationOptions; the numbers of replicas and "
            f"workers are detected, not given. Received: {shown(communication_options)}"
        )
    cluster, task = read_cluster(), launched_task()
    if cluster is None and task is not None:
        raise ClusterError(str(task))
    simulate_replicas()
    if (distributed := strategy_of_scope()) is not None:
        return distributed
    if cluster is not None and cluster.has_parameter_servers:
        return ParameterServerStrategy()
    if cluster is not None and cluster.num_workers > 1:
        return _multi_worker(cluster, communication_options)
    if any(map(os.environ.get, ("TPU_NAME", "COLAB_TPU_ADDR", "TPU_WORKER_ID"))):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
        return tf.distribute.TPUStrategy(resolver)
    gpus = tf.config.list_logical_devices("GPU")
    cpus = tf.config.list_logical_devices("CPU")
    if len(gpus) > 1 or (not gpus and len(cpus) > 1):
        _warn_of_mixed_models()
        return tf.distribute.MirroredStrategy([device.name for device in gpus or cpus])
    return tf.distribute.OneDeviceStrategy((gpus or cpus)[0].name)


def _warn_of_mixed_models() -> None:
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    models = sorted({str(each.get("device_name", "")) for each in details})
    if len(models) > 1:
        warnings.warn(
            f"The GPUs are of different models ({', '.join(models)}): every step waits for the slowest; choose those of one "
            "model with CUDA_VISIBLE_DEVICES.",
            stacklevel=3,
        )


def _multi_worker(cluster: Cluster, communication_options: Any) -> tf.distribute.Strategy:
    if cluster.task_type not in ("chief", "worker"):
        raise ClusterError(
            f"TF_CONFIG's task type must be 'chief' or 'worker' for a process that trains. Received: "
            f"{cluster.task_type!r}. An evaluator runs the script without a strategy of several workers."
        )
    cluster_start.install()
    options = communication_options or tf.distribute.experimental.CommunicationOptions()
    resolver = None
    if read_tf_config(os.environ) is None:  # Slurm: TensorFlow does not read its variables
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(dict(cluster.jobs)),
            task_type=cluster.task_type,
            task_id=cluster.task_index,
            num_accelerators={"GPU": _take_gpus_of_slurm_task(cluster)},
            rpc_layer="grpc",
        )
    return tf.distribute.MultiWorkerMirroredStrategy(resolver, communication_options=options)


def _take_gpus_of_slurm_task(cluster: Cluster) -> int:
    """Makes this task's share of the machine's GPUs visible, where Slurm has not bound them to tasks; returns the number."""
    gpus = tf.config.list_physical_devices("GPU")
    host, _ = split_address(cluster.address)
    neighbours = [address for address in cluster.workers if split_address(address)[0] == host]
    bound = any(name in os.environ for name in ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
    if gpus and not bound and len(neighbours) > 1:
        each = len(gpus) // len(neighbours)
        if not each:
            raise ClusterError(
                f"Slurm runs {len(neighbours)} tasks on {host}, which has {len(gpus)} GPU(s): start at most one task "
                f"for each GPU (--ntasks-per-node)."
            )
        mine = neighbours.index(cluster.address)
        gpus = gpus[mine * each : (mine + 1) * each]
        tf.config.set_visible_devices(gpus, "GPU")
    return len(gpus)
