"""The strategy for the devices and the cluster of this program: one machine, many, accelerators or none."""

import json
import os
import warnings
from typing import Any

import tensorflow as tf

from .arguments import shown
from .environment import peer_timeout
from .hardware.devices import gpu_details, simulate_replicas
from .keras_distribution import strategy_of_scope
from .parameter_servers.strategy import ParameterServerStrategy
from .workers import cluster_start
from .workers.addresses import split_address
from .workers.cluster import Cluster, ClusterError, read_cluster
from .workers.places import Peer, Place, read_place, warn_of_unknown_size
from .workers.rendezvous import meet

# TensorFlow's strategies, for clusters without TF_CONFIG.
cluster_resolver = tf.distribute.cluster_resolver


def auto_strategy(communication_options: Any = None) -> tf.distribute.Strategy:
    """Picks the strategy for the machine and the cluster that this process belongs to.

    | found | strategy |
    |---|---|
    | a distribution that `keras.distribution.set_distribution` has set | that of `strategy_of` |
    | TF_CONFIG with parameter servers | `ParameterServerStrategy` (in the coordinator) |
    | TF_CONFIG, or a launcher's variables, with several workers | `MultiWorkerMirroredStrategy` |
    | a TPU (TPU_NAME, or Cloud TPU's own variables) | `TPUStrategy` |
    | several GPUs, or several simulated devices | `MirroredStrategy` |
    | one GPU, or none | `OneDeviceStrategy` |

    Call it once, before TensorFlow's devices are used. Where a launcher (Slurm, MPI, torchrun, Kubernetes) started
    this process as one of several, all meet at the address of process 0, which sets TF_CONFIG. A worker without GPUs
    creates UNISONO_REPLICAS_PER_WORKER CPU devices.

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
            f"workers are detected, not given. Received: {shown(communication_options)}"
        )
    place = read_place()
    if place is not None and place.size:
        rank, peers = meet(place, peer_timeout(), cluster_start.digest_program())
        place = place._replace(rank=rank)
        _divide_gpus(place, peers)
        cluster = {"worker": [each.address for each in peers]}
        task = {"type": "worker", "index": place.rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    elif place is not None:
        warn_of_unknown_size(place)
    cluster = read_cluster()
    simulate_replicas()
    if (distributed := strategy_of_scope()) is not None:
        return distributed
    if cluster is not None and cluster.has_parameter_servers:
        return ParameterServerStrategy()
    if cluster is not None and cluster.num_workers > 1:
        return _multi_worker(cluster, communication_options)
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
            f"The GPUs are of different models ({', '.join(models)}): every step waits for the slowest; choose those of one "
            "model with CUDA_VISIBLE_DEVICES.",
            stacklevel=3,
        )


def _multi_worker(cluster: Cluster, communication_options: Any) -> tf.distribute.Strategy:
    if cluster.task_type not in ("chief", "worker"):
        raise ClusterError(
            f"TF_CONFIG's task type must be 'chief' or 'worker' for a process that trains. Received: "
            f"{cluster.task_type!r}."
        )
    cluster_start.install()
    options = communication_options or tf.distribute.experimental.CommunicationOptions()
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def _divide_gpus(place: Place, peers: list[Peer]) -> None:
    """Makes this process's share of the machine's GPUs visible, among the processes that see the same ones."""
    gpus = tf.config.list_physical_devices("GPU")
    seen = [(split_address(peer.address)[0], peer.devices) for peer in peers]
    sharing, host = [n for n, each in enumerate(seen) if each == seen[place.rank]], seen[place.rank][0]
    if gpus and len(sharing) > 1:
        each, position = len(gpus) // len(sharing), sharing.index(place.rank)
        if not each:
            raise ClusterError(
                f"{place.launcher} runs {len(sharing)} processes on {host}, which has {len(gpus)} GPU(s): start at most one "
                "for each GPU there."
            )
        tf.config.set_visible_devices(gpus[position * each : (position + 1) * each], "GPU")
