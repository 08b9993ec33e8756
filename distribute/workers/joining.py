"""Joins the cluster that a launcher or TF_CONFIG describes, before TensorFlow's devices are used."""

import contextlib
import importlib
import json
import os
import socket
import warnings

import tensorflow as tf

from ..environment import peer_timeout
from . import cluster_start
from .addresses import free_ports, join_address, split_address
from .cluster import Cluster, ClusterError, read_cluster
from .places import Peer, Place, read_place, warn_of_unknown_size
from .rendezvous import meet


def join_cluster(place: Place | None = None) -> Cluster | None:
    """Meet the other processes of a launcher, and set TF_CONFIG; return the cluster, or None without one.

    `place` is this process's place among them; None: as the launcher's variables say.
    """
    place = place or read_place()
    if place is not None and place.size:
        _warn_of_one_core(place)
        if not place.addresses:
            place = place._replace(addresses=ask_mpi(place))
        rank, peers = meet(place, peer_timeout(), cluster_start.digest_program())
        place = place._replace(rank=rank)
        _divide_gpus(place, peers)
        config = {"cluster": {"worker": [each.address for each in peers]}}
        os.environ["TF_CONFIG"] = json.dumps({**config, "task": {"type": "worker", "index": place.rank}})
    elif place is not None:
        warn_of_unknown_size(place)
    return read_cluster()


def ask_mpi(place: Place) -> tuple[str, ...]:
    """Get the address of rank 0 by a broadcast of MPI, if mpi4py is installed for it; else raise a ClusterError."""
    with contextlib.suppress(ImportError, RuntimeError):
        world = importlib.import_module("mpi4py.MPI").COMM_WORLD if place.launcher == "mpirun" else None
        if world is not None and (world.rank, world.size) == (place.rank, place.size):
            mine = "" if place.rank else join_address(socket.gethostname(), free_ports(1)[0])
            return (world.bcast(mine, root=0),)
    raise ClusterError(str(place))


def check_trains(cluster: Cluster) -> None:
    """Raise a ClusterError in a process of a cluster that does not train; prepare TensorFlow's strategy in others."""
    if cluster.task_type not in ("chief", "worker"):
        raise ClusterError(
            f"TF_CONFIG's task type must be 'chief' or 'worker' for a process that trains. Received: "
            f"{cluster.task_type!r}."
        )
    cluster_start.install()


def _warn_of_one_core(place: Place) -> None:
    """Warn if this process may use one core of many: Open MPI 4 binds each of two processes to one."""
    if len(os.sched_getaffinity(0)) == 1 and (cores := os.cpu_count() or 1) > 1:
        warnings.warn(
            f"{place.launcher} has bound this process to one of {cores} cores, which slows down training and its input: "
            "pass --bind-to none to mpirun of Open MPI, or request more cores (--cpus-per-task of Slurm).",
            stacklevel=4,
        )


def _divide_gpus(place: Place, peers: list[Peer]) -> None:
    """Make this process's share of the machine's GPUs visible, among the processes that see the same ones."""
    mine, gpus = peers[place.rank], tf.config.list_physical_devices("GPU")
    host, _ = split_address(mine.address)
    sharing = [
        n for n, p in enumerate(peers) if split_address(p.address)[0] == host and p.devices == mine.devices
    ]
    if gpus and len(sharing) > 1:
        each, position = len(gpus) // len(sharing), sharing.index(place.rank)
        if not each:
            raise ClusterError(
                f"{place.launcher} runs {len(sharing)} processes on {host}, which has {len(gpus)} GPU(s): start at most one "
                "for each GPU there."
            )
        tf.config.set_visible_devices(gpus[position * each : (position + 1) * each], "GPU")
