"""`keras.distribution.initialize` and `list_devices` for workers, which Keras lacks on TensorFlow."""

from typing import Any

import tensorflow as tf

from ..compat.patches import add, wrap
from .arguments import show, whole_number
from .environment import replicas_per_worker
from .hardware.devices import simulate_replicas
from .workers.addresses import split_address
from .workers.cluster import ClusterError, read_cluster
from .workers.joining import check_trains, join_cluster
from .workers.places import Place


def initialize(
    job_addresses: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Join the cluster of the arguments, of a launcher's variables or of TF_CONFIG: `keras.distribution.initialize`.

    Keras has read its own variables. `job_addresses` are those of all processes, or only of process 0. From then on
    `keras.distribution.list_devices` names the devices of all workers. Context: host, before devices are used.
    """
    given = (job_addresses, num_processes, process_id)
    cluster = read_cluster()
    if any(each is not None for each in given):
        place = _read_arguments(*given)
        if cluster is None:
            cluster = join_cluster(place)
        elif (cluster.worker_index, cluster.num_workers) != (place.rank, place.size):
            raise ClusterError(
                f"`process_id` ({place.rank}) and `num_processes` ({place.size}) contradict TF_CONFIG, which says that this "
                f"is worker {cluster.worker_index} of {cluster.num_workers}: unset TF_CONFIG, or pass no arguments."
            )
    else:
        cluster = join_cluster()
    if cluster is None:
        raise ClusterError(
            "keras.distribution.initialize() finds no cluster: pass `job_addresses`, `num_processes` and `process_id`, or "
            "start the script with a launcher, such as `python -m unisono launch`."
        )
    check_trains(cluster)
    if cluster.num_workers == 1:  # its devices are those of this process
        simulate_replicas()
    wrap("list_devices", _list_devices)


def _read_arguments(addresses: Any, size: Any, rank: Any) -> Place:
    size, rank = whole_number("num_processes", size), whole_number("process_id", rank, least=0)
    found = [each.strip() for each in addresses.split(",")] if isinstance(addresses, str) else []
    if rank >= size or len(found) not in (1, size):
        raise ClusterError(
            f'`job_addresses` must have the address "host:port" of process 0, or of each of the {size} processes, and '
            f"`process_id` must be less than `num_processes` ({size}). Received: {show(addresses)}, {rank}"
        )
    for each in found:
        try:
            split_address(each)
        except ValueError as error:
            raise ClusterError(f"`job_addresses`: {error}") from None
    return Place("keras.distribution.initialize", rank, size, tuple(found), "keras", "cluster")


def cluster_devices(workers: int, kind: str | None = None) -> list[str]:
    """Return the names of all devices of a cluster, numbered over all workers. It does not create the devices."""
    gpus = len(tf.config.get_visible_devices("GPU"))
    kind = (kind or ("gpu" if gpus else "cpu")).lower()
    each = gpus if kind == "gpu" else replicas_per_worker() if kind == "cpu" else 0
    return [f"{kind}:{number}" for number in range(workers * each)]


def _list_devices(original: Any, device_type: str | None = None) -> list[str]:
    cluster = read_cluster()
    if cluster is None or cluster.num_workers == 1:
        return original(device_type)
    return cluster_devices(cluster.num_workers, device_type)


add("initialize", initialize)
