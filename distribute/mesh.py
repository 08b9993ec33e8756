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


FLAT = -1
"""Instead of an axis of a variable: it is flattened and divided, and the last part is padded with zeros."""


def to_rows(value: Any, axis: int, count: int) -> tf.Tensor:
    """The `count` equal parts of a tensor of a known shape along an axis, or FLAT, as the rows of a matrix."""
    shape = value.shape.as_list()
    if axis == FLAT:
        numbers = math.prod(shape)
        missing = -numbers % count
        flat = tf.reshape(value, [-1])
        return tf.reshape(tf.pad(flat, [[0, missing]]) if missing else flat, [count, -(-numbers // count)])
    parted = tf.reshape(value, [*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :]])
    order = [axis, *(n for n in range(len(shape) + 1) if n != axis)]
    return tf.reshape(tf.transpose(parted, order) if axis else parted, [count, math.prod(shape) // count])


def from_rows(rows: tf.Tensor, axis: int, count: int, shape: Sequence[int]) -> tf.Tensor:
    """The tensor of a shape from its `count` parts, the rows of a matrix or one behind the other."""
    if axis == FLAT:
        return tf.reshape(tf.reshape(rows, [-1])[: math.prod(shape)], shape)
    parted = tf.reshape(rows, [count, *shape[:axis], shape[axis] // count, *shape[axis + 1 :]])
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
    return tf.reshape(tf.transpose(parted, order) if axis else parted, shape)


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a variable is divided.

    Attributes:
        axes: for each axis of the mesh the axis of the variable that it divides into equal parts, or None; along the axis
            of the batch alone it may be FLAT.
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
        if self.axes[0] == FLAT:
            return [-(-math.prod(found) // self.mesh.shape[0])]
        for size, axis in zip(self.mesh.shape, self.axes):
            if axis is not None:
                found[axis] //= size
        return found

    def part(self, value: Any, replica: int) -> Any:
        """A replica's part of an array or a tensor."""
        if self.axes[0] == FLAT:
            return to_rows(tf.convert_to_tensor(value), FLAT, self.mesh.shape[0])[self.mesh.place(replica)[0]]
        shape, where = self.part_shape(value.shape), [slice(None)] * len(value.shape)
        for axis, number in zip(self.axes, self.mesh.place(replica)):
            if axis is not None:
                where[axis] = slice(number * shape[axis], (number + 1) * shape[axis])
        return value[tuple(where)]

    def whole(self, parts: Sequence[tf.Tensor], shape: Sequence[int]) -> tf.Tensor:
        """The whole tensor of a shape, from the parts of all replicas."""
        found = list(parts)
        for size, axis in reversed([*zip(self.mesh.shape, self.axes)]):
            groups = [found[n : n + size] for n in range(0, len(found), size)]
            found = [group[0] if axis is None else tf.concat(group, max(axis, 0)) for group in groups]
        return found[0] if self.axes[0] != FLAT else from_rows(found[0], FLAT, self.mesh.shape[0], shape)


class MeshStrategy(tf.distribute.MirroredStrategy):
    """A MirroredStrategy whose replicas are arranged in a mesh. `strategy_of` makes it.

    Attributes:
        mesh: the arrangement, without axes of one replica but that of the batch.
        layouts: None, or the `keras.distribution.LayoutMap` of the weights.
        unmatched: patterns of it of which a warning has said that no variable matches them.
    """

    def __init__(self, devices: list[str], mesh: Mesh, layouts: Any) -> None:
        ops = None if all(map(is_gpu, devices)) else tf.distribute.ReductionToOneDevice()
        super().__init__(devices, cross_device_ops=ops)
        kept = [axis for axis, size in enumerate(mesh.shape) if axis == 0 or size > 1]
        self.mesh = Mesh(tuple(mesh.names[n] for n in kept), tuple(mesh.shape[n] for n in kept))
        self.layouts = layouts
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
            number = self.mesh.names.index(name) if name in self.mesh.names else 0
            size = self.mesh.shape[number] if name in self.mesh.names else 1
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


def gather_part(part: tf.Tensor, layout: Layout) -> tf.Tensor:
    """The whole tensor, from this replica's part of a layout that is not FLAT. Context: replica, in one process."""
    for number, axis in enumerate(layout.axes):
        if axis is not None:
            (part,) = combine_in_groups(
                [part], [number], [lambda parts, _, axis=axis: tf.concat(parts, axis)]
            )
    return part


def combine_in_groups(
    tensors: Sequence[tf.Tensor],
    axes: Sequence[int],
    combine: Sequence[Callable[[list[tf.Tensor], int], tf.Tensor]],
) -> list[tf.Tensor]:
    """What each function of `combine` makes of a tensor of the replicas that differ along an axis of the mesh alone.

    It is also given this replica's number among them. Context: replica, in one process.
    """
    mesh = mesh_of()

    def across(strategy: tf.distribute.Strategy, values: list[Any]) -> list[Any]:
        found = []
        for value, axis, function in zip(values, axes, combine):
            local = strategy.experimental_local_results(value)
            made = []
            for replica, mine in enumerate(local):
                with tf.device(mine.device):
                    group = [local[number] for number in mesh.group(replica, axis)]
                    made.append(function(group, mesh.place(replica)[axis]))
            found.append(PerReplica(made))
        return found

    own = [tf.identity(tensor) for tensor in tensors]
    return tf.distribute.get_replica_context().merge_call(across, args=(own,))
