"""The strategy for the devices and the cluster of this program: one machine, many, accelerators or none."""

import os
import warnings
from typing import Any

import tensorflow as tf

from .arguments import show
from .hardware.devices import gpu_details, simulate_replicas
from .keras_distribution import strategy_of_scope
from .parameter_servers.strategy import ParameterServerStrategy
from .workers.joining import check_trains, join_cluster

# TensorFlow's strategies, for clusters without TF_CONFIG.
cluster_resolver = tf.distribute.cluster_resolver


def auto_strategy(communication_options: Any = None) -> tf.distribute.Strategy:
    """Pick the strategy for the machine and the cluster that this process belongs to.

    | found | strategy |
    |---|---|
    | a distribution that `keras.distribution.set_distribution` has set | the one that `strategy_of` returns |
    | TF_CONFIG with parameter servers | `ParameterServerStrategy` (in the coordinator) |
    | TF_CONFIG, or a launcher's variables, with several workers | `MultiWorkerMirroredStrategy` |
    | a TPU (TPU_NAME, or Cloud TPU's own variables) | `TPUStrategy` |
    | several GPUs, or several simulated devices | `MirroredStrategy` |
    | one GPU, or none | `OneDeviceStrategy` |

    Call it once, before TensorFlow's devices are used. Where a launcher (Slurm, MPI, torchrun, Kubernetes) started
    this process as one of several, all processes meet at the address of process 0, and TF_CONFIG is set. A worker
    without GPUs creates UNISONO_REPLICAS_PER_WORKER CPU devices.

    Args:
        communication_options: `tf.distribute.experimental.CommunicationOptions`, for several workers.

    Raises:
        ClusterError: TF_CONFIG or a launcher's variables are wrong, or do not tell where process 0 is.
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
            f"workers are detected, not passed. Received: {show(communication_options)}"
        )
    cluster = join_cluster()
    simulate_replicas()
    if (distributed := strategy_of_scope()) is not None:
        return distributed
    if cluster is not None and cluster.has_parameter_servers:
        return ParameterServerStrategy()
    if cluster is not None and cluster.num_workers > 1:
        check_trains(cluster)
        return tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=communication_options or known()
        )
    if any(map(os.environ.get, ("TPU_NAME", "COLAB_TPU_ADDR", "TPU_WORKER_ID"))):
        return tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver.connect())
    gpus = tf.config.list_logical_devices("GPU")
    cpus = tf.config.list_logical_devices("CPU")
    if len(gpus) > 1 or (not gpus and len(cpus) > 1):
        _warn_of_mixed_models()
        return tf.distribute.MirroredStrategy([device.name for device in gpus or cpus])
    return tf.distribute.OneDeviceStrategy((gpus or cpus)[0].name)


def _warn_of_mixed_models() -> None:
    models = sorted({str(each.get("device_name", "")) for each in gpu_details()})
    if len(models) > 1:
        warnings.warn(
            f"The GPUs are different models ({', '.join(models)}), so every step waits for the slowest: select GPUs of one "
            "model with CUDA_VISIBLE_DEVICES.",
            stacklevel=3,
        )
