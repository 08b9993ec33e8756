"""Meshes of devices in Keras' words: a `keras.distribution.DeviceMesh`, and the strategy whose replicas it arranges."""

from __future__ import annotations

import dataclasses
import math
import weakref
from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.distributions import layouts_of
from .arguments import shown
from .hardware.devices import check_exist, is_gpu
from .workers.cluster import ClusterError, read_cluster

_strategies: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Replicas, numbered like the elements of an array.

    Attributes:
        names: of the axes; the first is that of the batch.
        shape: the number of replicas along each axis.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]


class MeshStrategy(tf.distribute.MirroredStrategy):
    """A MirroredStrategy whose replicas are arranged in a mesh. `strategy_of` makes it.

    Attributes:
        mesh: the arrangement.
        layouts: None, or the `keras.distribution.LayoutMap` of the weights.
    """

    def __init__(self, devices: list[str], mesh: Mesh, layouts: Any) -> None:
        ops = None if all(map(is_gpu, devices)) else tf.distribute.ReductionToOneDevice()
        super().__init__(devices, cross_device_ops=ops)
        self.mesh, self.layouts = mesh, layouts


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
        ValueError: a device does not exist or is in the mesh twice, or weights would be divided over several devices.
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
    _check_layouts(kind, mesh, layouts)
    if len(devices) == 1:
        return tf.distribute.OneDeviceStrategy(devices[0])
    return MeshStrategy(devices, mesh, layouts)


def _check_layouts(kind: str, mesh: Mesh, layouts: Any) -> None:
    if math.prod(mesh.shape[1:]) > 1:
        sizes = dict(zip(mesh.names, mesh.shape))
        raise ValueError(
            f"A {kind} over {sizes} would divide weights over several devices, which is not supported yet: use a mesh in "
            f"which only {mesh.names[0]!r} is larger than 1, `unisono.distribute.sharded(strategy)` or a Pipeline."
        )
    for path, layout in (layouts or {}).items():
        if mesh.shape[0] > 1 and mesh.names[0] in layout.axes:
            raise ValueError(
                f"The layout {layout.axes} of {path!r} divides weights over {mesh.names[0]!r}, the axis of the batch, which "
                'is not supported yet: use `unisono.distribute.sharded(strategy, "weights")` for that.'
            )
