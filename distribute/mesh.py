"""Meshes of devices: how replicas are arranged, and how weights are divided over them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..compat.tensorflow_private.strategies import PerReplica
from .hardware.devices import is_gpu


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Replicas, numbered like the elements of an array.

    Attributes:
        names: of the axes; the first is that of the batch.
        shape: the number of replicas along each axis.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return str(dict(zip(self.names, self.shape)))

    def place(self, replica: int) -> tuple[int, ...]:
        """A replica's number along each axis."""
        return [*itertools.product(*map(range, self.shape))][replica]

    def group(self, replica: int, axis: int) -> list[int]:
        """The replicas that differ from one along an axis alone, itself included, in order."""
        after = math.prod(self.shape[axis + 1 :])
        first = replica - self.place(replica)[axis] * after
        return [first + number * after for number in range(self.shape[axis])]

    @property
    def divides_weights(self) -> bool:
        """Whether several replicas have the same samples."""
        return math.prod(self.shape[1:]) > 1


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a variable is divided.

    Attributes:
        axes: for each axis of the mesh the axis of the variable that it divides into equal parts, or None.
    """

    mesh: Mesh
    axes: tuple[int | None, ...]

    @property
    def copies(self) -> int:
        """How many replicas have the same part."""
        return math.prod(size for size, axis in zip(self.mesh.shape, self.axes) if axis is None)

    def part_shape(self, shape: Sequence[int]) -> list[int]:
        """The shape of a replica's part."""
        found = list(shape)
        for size, axis in zip(self.mesh.shape, self.axes):
            if axis is not None:
                found[axis] //= size
        return found

    def part(self, value: Any, replica: int) -> Any:
        """A replica's part of an array or a tensor."""
        shape, where = self.part_shape(value.shape), [slice(None)] * len(value.shape)
        for axis, number in zip(self.axes, self.mesh.place(replica)):
            if axis is not None:
                where[axis] = slice(number * shape[axis], (number + 1) * shape[axis])
        return value[tuple(where)]

    def whole(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """The whole tensor, from the parts of all replicas."""
        found = list(parts)
        for size, axis in reversed([*zip(self.mesh.shape, self.axes)]):
            groups = [found[n : n + size] for n in range(0, len(found), size)]
            found = [group[0] if axis is None else tf.concat(group, axis) for group in groups]
        return found[0]


class MeshStrategy(tf.distribute.MirroredStrategy):
    """A MirroredStrategy whose replicas are arranged in a mesh. `strategy_of` makes it.

    Attributes:
        mesh: the arrangement.
        layouts: None, or the `keras.distribution.LayoutMap` of the weights.
        unmatched: patterns of it of which a warning has said that no variable matches them.
    """

    def __init__(self, devices: list[str], mesh: Mesh, layouts: Any) -> None:
        ops = None if all(map(is_gpu, devices)) else tf.distribute.ReductionToOneDevice()
        super().__init__(devices, cross_device_ops=ops)
        self.mesh, self.layouts = mesh, layouts
        self.unmatched: set[str] = set()

    def layout_of(self, path: str, shape: Sequence[int]) -> Layout | None:
        """How a weight is divided; None for one that each replica has whole."""
        layout = None if self.layouts is None else self.layouts[path]
        if layout is None:
            return None
        if len(layout.axes) != len(shape):
            raise ValueError(
                f"The layout {layout.axes} of {path!r} has {len(layout.axes)} entries, but the weight of shape "
                f"{tuple(shape)} has {len(shape)} axes: give one entry for each axis."
            )
        found: list[int | None] = [None] * len(self.mesh.names)
        for axis, name in enumerate(layout.axes):
            number = 0 if name is None else self.mesh.names.index(name)
            size = 1 if name is None else self.mesh.shape[number]
            if size > 1 and number == 0:
                raise ValueError(
                    f"The layout {layout.axes} of {path!r} divides a weight over {name!r}, the axis of the batch, which is "
                    'not supported yet: use None there, or `unisono.distribute.sharded(strategy, "weights")` on its own.'
                )
            if shape[axis] % size:
                raise ValueError(
                    f"The layout {layout.axes} of {path!r} divides axis {axis} of the shape {tuple(shape)} by {size} "
                    f"({name!r}), which leaves a remainder: choose another axis, or None."
                )
            if size > 1:
                found[number] = axis
        return None if found == [None] * len(found) else Layout(self.mesh, tuple(found))


def mesh_of(strategy: Any = None) -> Mesh:
    """The mesh of a strategy (None: the current one): without one, all replicas divide the batch."""
    strategy = strategy or tf.distribute.get_strategy()
    if isinstance(strategy, MeshStrategy):
        return strategy.mesh
    return Mesh(("batch",), (strategy.num_replicas_in_sync,))


def combine_in_groups(
    tensors: Sequence[tf.Tensor],
    axes: Sequence[int],
    combine: Sequence[Callable[[list[tf.Tensor]], tf.Tensor]],
) -> list[tf.Tensor]:
    """What each function of `combine` makes of a tensor of the replicas that differ along an axis of the mesh alone.

    Context: replica, in one process.
    """
    mesh = mesh_of()

    def across(strategy: tf.distribute.Strategy, values: list[Any]) -> list[Any]:
        found = []
        for value, axis, function in zip(values, axes, combine):
            local = strategy.experimental_local_results(value)
            made = []
            for replica, mine in enumerate(local):
                with tf.device(mine.device):
                    made.append(function([local[number] for number in mesh.group(replica, axis)]))
            found.append(PerReplica(made))
        return found

    own = [tf.identity(tensor) for tensor in tensors]
    return tf.distribute.get_replica_context().merge_call(across, args=(own,))
