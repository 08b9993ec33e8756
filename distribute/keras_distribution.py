"""The strategies of `keras.distribution`, which Keras itself carries out on JAX alone."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.distributions import layouts_of
from .arguments import shown
from .hardware.devices import check_exist
from .mesh import Mesh, MeshStrategy
from .sharding.sharded import divide_weights
from .workers.cluster import ClusterError, read_cluster

_strategies: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def strategy_of(distribution: Any) -> tf.distribute.Strategy:
    """Returns the strategy that carries out a distribution of Keras, which Keras itself carries out on JAX alone.

    Args:
        distribution: `keras.distribution.DataParallel` or `keras.distribution.ModelParallel`, over CPUs or GPUs of this
            process. A `DeviceMesh` without `devices` has all of them.

    Returns:
        The same strategy at each call: a `tf.distribute.MirroredStrategy` over the devices of the mesh, or a
        `OneDeviceStrategy` for a mesh of one device.

    Raises:
        TypeError: `distribution` is not one of these distributions.
        ValueError: a device does not exist, or is in the mesh twice.
        ClusterError: this process is one of several workers.

    Examples:
        >>> distribution = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
        >>> unisono.distribute.strategy_of(distribution).num_replicas_in_sync
        2
    """
    kinds = keras.distribution.DataParallel, keras.distribution.ModelParallel
    if not isinstance(distribution, kinds):
        raise TypeError(
            "`distribution` must be a keras.distribution.DataParallel or a keras.distribution.ModelParallel. "
            f"Received: {shown(distribution)}"
        )
    if distribution not in _strategies:
        _strategies[distribution] = _make_strategy(distribution)
    return _strategies[distribution]


def strategy_of_scope() -> tf.distribute.Strategy | None:
    """The strategy of the distribution that `keras.distribution.set_distribution` or its scope has set, or None."""
    distribution: Any = keras.distribution.distribution()
    return None if distribution is None else strategy_of(distribution)


def _make_strategy(distribution: Any) -> tf.distribute.Strategy:
    kind, device_mesh = type(distribution).__name__, distribution.device_mesh
    cluster = read_cluster()
    if cluster is not None and (cluster.num_workers > 1 or cluster.has_parameter_servers):
        raise ClusterError(
            f"A {kind} is carried out by one process, but this one belongs to a cluster of several: use "
            "`tf.distribute.MultiWorkerMirroredStrategy` there, or start the script without the launcher."
        )
    names, first = [*device_mesh.axis_names], distribution.batch_dim_name
    if first not in names:
        raise ValueError(
            f"`batch_dim_name` of the {kind} must be an axis of its mesh, one of {names}. Received: {first!r}"
        )
    order = sorted(range(len(names)), key=lambda axis: names[axis] != first)
    arranged = device_mesh.devices.transpose(order)
    devices = [str(device).upper() for device in arranged.ravel()]
    check_exist("device_mesh", devices)
    if len({*devices}) < len(devices):
        raise ValueError(
            f"`device_mesh` of shape {tuple(arranged.shape)} needs {len(devices)} devices, but it has {len({*devices})}: "
            f"name each device once. Received: {shown(devices)}"
        )
    mesh = Mesh(tuple(names[axis] for axis in order), tuple(map(int, arranged.shape)))
    layouts = layouts_of(distribution)
    if outputs := [path for path in layouts or () if path.endswith("/output")]:
        raise ValueError(
            f"The layout map of the {kind} has {outputs[0]!r}, a layout of an output, which is not supported yet: leave it "
            "out. Layouts of outputs are derived from those of weights."
        )
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy(devices[0])
    strategy = MeshStrategy(devices, mesh, layouts)
    if layouts is not None:
        divide_weights(strategy)
    return strategy
