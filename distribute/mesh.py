"""Meshes of devices: how replicas are arranged, and how weights are divided over them."""

import dataclasses
import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..compat.tensorflow_private.strategies import gather_in_group, launcher_in_group
from ..compat.upstream_places import PerReplica
from .replicas import from_carrier, local_replica_index, to_carrier
from .step_context import note_collective
from .workers.agreement import first_local_replica, spans_workers


@dataclasses.dataclass(frozen=True)
class Mesh:
    """Replicas, numbered like the elements of an array.

    Attributes:
        names: of the axes; the first is that of the batch.
        shape: the number of replicas along each axis.
        order: the number of the replica at each place, in the order of the array; None: ascending.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return str(dict(zip(self.names, self.shape)))

    @property
    def replicas(self) -> list[int]:
        """The number of the replica at each place, in the order of the array."""
        return [*range(math.prod(self.shape))] if self.order is None else [*self.order]

    def place(self, replica: int) -> tuple[int, ...]:
        """Return a replica's number along each axis."""
        return [*itertools.product(*map(range, self.shape))][self.replicas.index(replica)]

    def group(self, replica: int, axis: int) -> list[int]:
        """Return the replicas that differ from one along an axis alone, itself included, in order."""
        after = math.prod(self.shape[axis + 1 :])
        first = self.replicas.index(replica) - self.place(replica)[axis] * after
        return [self.replicas[first + number * after] for number in range(self.shape[axis])]

    @property
    def divides_weights(self) -> bool:
        """Whether several replicas have the same samples."""
        return math.prod(self.shape[1:]) > 1


FLAT = -1
"""Instead of an axis of a variable: it is flattened and divided, and the last part is padded with zeros."""


def to_rows(value: Any, axis: int, count: int) -> tf.Tensor:
    """Return the `count` equal parts of a tensor of a known shape along an axis, or FLAT, as the rows of a matrix."""
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
    """Return the tensor of a shape from its `count` parts, the rows of a matrix or one behind the other."""
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
            of the batch it may be FLAT, for flat parts of what the others leave.
    """

    mesh: Mesh
    axes: tuple[int | None, ...]

    @property
    def copies(self) -> int:
        """How many replicas have the same part."""
        return math.prod(size for size, axis in zip(self.mesh.shape, self.axes) if axis is None)

    @property
    def is_flat(self) -> bool:
        """Whether a part is flat."""
        return self.axes[0] == FLAT

    def before_flat(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of what is divided into flat parts, or of a replica's part without them."""
        found = list(shape)
        for size, axis in zip(self.mesh.shape, self.axes):
            if axis is not None and axis != FLAT:
                found[axis] //= size
        return found

    def part_shape(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of a replica's part."""
        found = self.before_flat(shape)
        return [-(-math.prod(found) // self.mesh.shape[0])] if self.is_flat else found

    def part(self, value: Any, replica: int) -> Any:
        """Return a replica's part of an array or a tensor."""
        shape, where = self.before_flat(value.shape), [slice(None)] * len(value.shape)
        for axis, number in zip(self.axes, self.mesh.place(replica)):
            if axis is not None and axis != FLAT:
                where[axis] = slice(number * shape[axis], (number + 1) * shape[axis])
        part = value[tuple(where)] if {*self.axes} - {None, FLAT} else value
        if self.is_flat:
            return to_rows(tf.convert_to_tensor(part), FLAT, self.mesh.shape[0])[self.mesh.place(replica)[0]]
        return part

    def whole(self, parts: Sequence[tf.Tensor], shape: Sequence[int]) -> tf.Tensor:
        """Return the whole tensor of a shape, from the parts of all replicas."""
        found, divided = [parts[each] for each in self.mesh.replicas], [*zip(self.mesh.shape, self.axes)]
        if self.is_flat:
            each, (count, _) = len(found) // self.mesh.shape[0], divided.pop(0)
            rows = [tf.concat(found[n::each], 0) for n in range(each)]
            found = [from_rows(row, FLAT, count, self.before_flat(shape)) for row in rows]
        for size, axis in reversed(divided):
            groups = [found[n : n + size] for n in range(0, len(found), size)]
            found = [group[0] if axis is None else tf.concat(group, axis) for group in groups]
        return found[0]

    def gather(self, part: Any) -> tf.Tensor:
        """Return the whole tensor, of which each replica has a part that is not flat. Context: replica."""
        whole = tf.convert_to_tensor(part)
        for number, axis in enumerate(self.axes):
            if axis is not None and axis != FLAT:
                (whole,) = combine_in_groups([whole], [number], [axis])
        return whole

    @property
    def along_model(self) -> "Layout":
        """Return the layout without what the batch divides."""
        return Layout(self.mesh, (None, *self.axes[1:]))

    def cut_along_batch(self, value: Any) -> Any:
        """Return this replica's part of a value that is already divided along the model. Context: replica."""
        return Layout(self.mesh, (self.axes[0], *[None] * (len(self.axes) - 1))).own_part(value)

    def own_part(self, value: Any) -> Any:
        """Return this replica's part of a whole tensor. Context: replica."""
        return self.part(value, this_replica())


def flat_layout(mesh: Mesh, layout: Layout | None = None) -> Layout:
    """Return a layout that is divided further into flat parts along the batch, if it does not divide along it already."""
    axes = layout.axes if layout is not None else (None,) * len(mesh.shape)
    return Layout(mesh, axes if axes[0] is not None else (FLAT, *axes[1:]))


class OnMesh:
    """A strategy whose replicas are arranged in a mesh. `strategy_of` makes it.

    Attributes:
        mesh: the arrangement, without axes of one replica but that of the batch.
        layouts: None, or the `keras.distribution.LayoutMap` of the weights.
        unmatched: its patterns that match no variable, after a warning about them.
    """

    mesh: Mesh
    layouts: Any
    unmatched: set[str]
    _names: tuple[str, ...]

    def arrange(self, mesh: Mesh, layouts: Any) -> None:
        """Set the arrangement and the layouts."""
        kept = [axis for axis, size in enumerate(mesh.shape) if axis == 0 or size > 1]
        self.mesh = Mesh(tuple(mesh.names[n] for n in kept), tuple(mesh.shape[n] for n in kept), mesh.order)
        self._names, self.layouts, self.unmatched = mesh.names, layouts, set()

    def layout_of(self, path: str, shape: Sequence[int]) -> Layout | None:
        """Return how a weight is divided; None for one that each replica has whole."""
        try:
            layout = None if self.layouts is None else self.layouts[path]
        except re.error as error:
            raise ValueError(
                f"The pattern {error.pattern!r} of the layout map is not a regular expression ({error.msg}): escape special "
                "characters, and use '.*' for any text."
            ) from None
        if layout is None:
            return None
        if len(layout.axes) != len(shape):
            raise ValueError(
                f"The layout {layout.axes} of {path!r} has {len(layout.axes)} entries, but the weight of shape "
                f"{tuple(shape)} has {len(shape)} axes: name an axis of the mesh, or None, for each."
            )
        named = [name for name in layout.axes if name is not None]
        if wrong := [name for name in named if name not in self._names or named.count(name) > 1]:
            raise ValueError(
                f"The layout {layout.axes} of {path!r}, a weight of shape {tuple(shape)}, names {wrong[0]!r} twice, or "
                f"the mesh has no such axis: choose from {[*self._names]}, or None."
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
    """Return the mesh of a strategy (None: the current one): without one, all replicas divide the batch."""
    strategy = strategy or tf.distribute.get_strategy()
    if isinstance(strategy, OnMesh):
        return strategy.mesh
    return Mesh(("batch",), (strategy.num_replicas_in_sync,))


def this_replica() -> int:
    """Return this replica's number over all workers, known while tracing. Context: replica."""
    return first_local_replica(tf.distribute.get_strategy()) + local_replica_index()


def of_first_copy(layout: Layout, part: tf.Tensor) -> tf.Tensor:
    """Return the first replica's bits of a part, on all replicas that have the same part. Context: replica."""
    for number, (size, axis) in enumerate(zip(layout.mesh.shape, layout.axes)):
        if axis is None and size > 1:
            first = layout.mesh.place(this_replica())[number] == 0
            (part,) = combine_in_groups([part if first else tf.zeros_like(part)], [number], [None])
    return part


MATRICES = -1
"""Instead of an axis, of matrices with a row for each replica of a group: the sum of this replica's rows."""


def combine_in_groups(
    tensors: Sequence[tf.Tensor], axes: Sequence[int], along: Sequence[int | None], equal: bool = True
) -> list[tf.Tensor]:
    """Sum or concatenate each tensor of the replicas that differ along one axis of the mesh alone.

    `axes` are those of the mesh. `along` are those of the tensors, to concatenate; None: the sum; MATRICES: that of
    this replica's rows of each matrix.
    `equal`: the shapes are, on replicas that differ along an axis that is not the batch's. Context: replica.
    """
    mesh = mesh_of()

    def across(strategy: tf.distribute.Strategy, values: list[Any]) -> list[Any]:
        found, first = [], first_local_replica(strategy)
        for value, axis, concat in zip(values, axes, along):
            local, made = strategy.experimental_local_results(value), []
            for number, mine in enumerate(local):
                group, place = mesh.group(first + number, axis), mesh.place(first + number)[axis]
                with tf.device(mine.device):
                    if len(group) > 1 and len(local) < strategy.num_replicas_in_sync:
                        key = axis * len(mesh.replicas) + group[0]
                        launcher = launcher_in_group(strategy, number, key, len(group))
                        own = _launch(
                            launcher, mine, None if concat == MATRICES else concat, equal and axis > 0
                        )
                        made.append(own[place] if concat == MATRICES else own)
                    else:
                        members = [local[each] if len(group) > 1 else mine for each in group]
                        members = [each[place] for each in members] if concat == MATRICES else members
                        summed = concat in (None, MATRICES)
                        made.append(tf.add_n(members) if summed else tf.concat(members, concat))
            found.append(PerReplica(made))
        return found

    if spans_workers():
        note_collective(tensors)
    own = [tf.identity(tensor) for tensor in tensors]
    return tf.distribute.get_replica_context().merge_call(across, args=(own,))


def _launch(launcher: Any, tensor: tf.Tensor, concat: int | None, equal: bool) -> tf.Tensor:
    """Return a replica's collective with its group, over workers; `equal`: the shapes of the group are."""
    if concat is None:
        return from_carrier(launcher.all_reduce(to_carrier(tensor)), tensor.dtype)
    whole = from_carrier(gather_in_group(launcher, to_carrier(tensor), concat, equal), tensor.dtype)
    return tf.ensure_shape(whole, [None if n == concat else size for n, size in enumerate(tensor.shape)])
