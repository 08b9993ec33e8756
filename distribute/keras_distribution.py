"""The strategies of `keras.distribution`, which Keras itself supports only on JAX."""

import dataclasses
import weakref
from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.layers import ignore_layout, layouts_of
from ..compat.patches import add
from .arguments import show
from .hardware.devices import check_exist, is_gpu
from .keras_processes import cluster_devices
from .mesh import Mesh, OnMesh
from .sharding.sharded import divide_weights
from .workers.cluster import Cluster, ClusterError
from .workers.joining import check_trains, join_cluster

_strategies: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class MeshStrategy(OnMesh, tf.distribute.MirroredStrategy):
    """A mesh of devices of one process."""

    def __init__(self, devices: list[str], mesh: Mesh, layouts: Any) -> None:
        ops = None if all(map(is_gpu, devices)) else tf.distribute.ReductionToOneDevice()
        tf.distribute.MirroredStrategy.__init__(self, devices, cross_device_ops=ops)
        self.arrange(mesh, layouts)


class WorkerMeshStrategy(OnMesh, tf.distribute.MultiWorkerMirroredStrategy):
    """A mesh of the devices of several workers. Context: as MultiWorkerMirroredStrategy, on every worker."""

    def __init__(self, mesh: Mesh, layouts: Any) -> None:
        tf.distribute.MultiWorkerMirroredStrategy.__init__(self)
        self.arrange(mesh, layouts)


def strategy_of(distribution: Any) -> tf.distribute.Strategy:
    """Return the strategy for a distribution of Keras, which Keras itself supports only on JAX.

    Args:
        distribution: `keras.distribution.DataParallel` or `keras.distribution.ModelParallel`, over CPUs or GPUs of this
            process, or over all devices of a cluster. A `DeviceMesh` without `devices` contains all of these.

    Returns:
        The same strategy at each call: a `tf.distribute.MirroredStrategy` over the devices of the mesh, a
        `OneDeviceStrategy` for a mesh of one device, or a `MultiWorkerMirroredStrategy` in one of several workers.

    Raises:
        TypeError: `distribution` is not one of these distributions.
        ValueError: a device does not exist, or is in the mesh twice.
        ClusterError: the mesh does not have exactly the devices of the cluster, or there are parameter servers.

    Examples:
        >>> distribution = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
        >>> unisono.distribute.strategy_of(distribution).num_replicas_in_sync
        2
    """
    kinds = keras.distribution.DataParallel, keras.distribution.ModelParallel
    if not isinstance(distribution, kinds):
        raise TypeError(
            "`distribution` must be a keras.distribution.DataParallel or a keras.distribution.ModelParallel. "
            f"Received: {show(distribution)}"
        )
    accept_layouts_of_outputs()
    if distribution not in _strategies:
        _strategies[distribution] = _make_strategy(distribution)
    return _strategies[distribution]


def strategy_of_scope() -> tf.distribute.Strategy | None:
    """Return the strategy of the distribution that `keras.distribution.set_distribution` or its scope has set, or None."""
    distribution: Any = keras.distribution.distribution()
    return None if distribution is None else strategy_of(distribution)


def accept_layouts_of_outputs() -> None:
    """Let layers whose outputs have a layout ask for it, which Keras lacks on TensorFlow."""
    add("distribute_tensor", ignore_layout)


def _make_strategy(distribution: Any) -> tf.distribute.Strategy:
    kind, device_mesh = type(distribution).__name__, distribution.device_mesh
    cluster = join_cluster()
    names, first = [*device_mesh.axis_names], distribution.batch_dim_name
    if first not in names:
        raise ValueError(
            f"`batch_dim_name` of the {kind} must be an axis of its mesh, one of {names}. Received: {first!r}"
        )
    order = sorted(range(len(names)), key=lambda axis: names[axis] != first)
    arranged = device_mesh.devices.transpose(order)
    devices = [str(device).upper() for device in arranged.ravel()]
    if len({*devices}) < len(devices):
        raise ValueError(
            f"`device_mesh` of shape {tuple(arranged.shape)} needs {len(devices)} devices, but it has {len({*devices})}: "
            f"name each device once. Received: {show(devices)}"
        )
    mesh = Mesh(tuple(names[axis] for axis in order), tuple(map(int, arranged.shape)))
    layouts = layouts_of(distribution)
    if cluster is not None and (cluster.num_workers > 1 or cluster.has_parameter_servers):
        strategy: tf.distribute.Strategy = _make_strategy_of_workers(kind, cluster, devices, mesh, layouts)
    else:
        check_exist("device_mesh", devices)
        if len(devices) == 1:
            return tf.distribute.OneDeviceStrategy(devices[0])
        strategy = MeshStrategy(devices, mesh, layouts)
    if layouts is not None:
        divide_weights(strategy)
    return strategy


def _make_strategy_of_workers(
    kind: str, cluster: Cluster, devices: list[str], mesh: Mesh, layouts: Any
) -> WorkerMeshStrategy:
    """Return a strategy of all devices of a cluster, which Keras numbers over all workers."""
    if cluster.has_parameter_servers:
        raise ClusterError(
            f"A {kind} needs workers that train synchronously, but TF_CONFIG names parameter servers: start only "
            "workers, or use `unisono.distribute.ParameterServerStrategy` without keras.distribution."
        )
    check_trains(cluster)
    known = [*map(str.upper, cluster_devices(cluster.num_workers))]
    if sorted(devices) != sorted(known):
        raise ClusterError(
            f"`device_mesh` of shape {mesh.shape} has {len(devices)} devices ({show(devices)}), but the cluster has "
            f"{len(known)}, {len(known) // cluster.num_workers} on each of {cluster.num_workers} workers: call "
            "keras.distribution.initialize() first, then create a DeviceMesh from all of them."
        )
    numbers = tuple(map(known.index, devices))
    along_batch = numbers[:: len(numbers) // mesh.shape[0]]
    if sorted(along_batch) != [*along_batch]:
        raise ClusterError(
            f"`device_mesh` must have the devices along {mesh.names[0]!r}, the axis of the batch, in the order of the "
            f"workers. Received: {show(devices)}"
        )
    return WorkerMeshStrategy(dataclasses.replace(mesh, order=numbers), layouts)
