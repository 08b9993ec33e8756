"""An operation, what is known of its inputs, and the label of each along an axis of the mesh."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import scratch_graph
from ....compat.tensorflow_graphs.named_calls import kind_of
from ....compat.tensorflow_graphs.one_device import copy_into_graph
from ..conversions import Replica
from ..labels import REPLICATED, Label, Labels, are_together, label_sharded
from ..program import BATCH, MeshAxis, Value
from ..sizes.size import Extent, Shape, is_open
from ..sizes.size_arrays import Unknown, extents_of, plain, shape_of

Wants = list[Label | None]
Ruling = tuple[Wants, list[Label]]
"""The labels with which an operation can compute, None where an input is used unchanged, and the labels of its outputs."""
Shapes = Sequence[Shape]
Known = TypeVar("Known")


def require(value: Known | None) -> Known:
    """Return `value`; raise `Unknown` where it is not known."""
    if value is None:
        raise Unknown
    return value


@dataclasses.dataclass
class Call:
    """An operation and the values of its inputs. Methods raise `Unknown` for what is not known."""

    op: tf.Operation
    values: Sequence[Value]

    @property
    def type(self) -> str:
        """The type of the operation."""
        return kind_of(self.op)

    @property
    def count(self) -> int:
        """The number of outputs."""
        return len(self.op.outputs)

    def attr(self, name: str) -> Any:
        """Return an attribute; bytes as text."""
        found = self.op.get_attr(name)
        return found.decode() if isinstance(found, bytes) else found

    def shape(self, number: int = 0) -> list[Extent]:
        """Return the shape of an input."""
        return require(self.values[number].shape)

    def rank(self, number: int = 0) -> int:
        """Return the rank of an input."""
        return len(self.shape(number))

    def names(self, number: int = 0) -> str:
        """Return a letter for each axis of an input."""
        return name_axes(self.rank(number))

    def constant(self, number: int) -> np.ndarray:
        """Return the numbers of an input, as sizes."""
        return require(self.values[number].constant)

    def fixed(self, number: int) -> np.ndarray:
        """Return the numbers of an input that do not depend on the size of the batch."""
        return require(plain(self.values[number].constant))

    def item(self, number: int) -> Extent:
        """Return the number of a scalar input; None where it is not known."""
        found = self.values[number].constant
        return None if found is None else found.item()

    def axes(self, number: int, data: int = 0) -> list[int]:
        """Return the axes of the input `data` that another input names, counted from 0."""
        return [int(axis) % max(self.rank(data), 1) for axis in np.ravel(self.fixed(number))]

    def compute(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs for these inputs, as TensorFlow computes them."""
        fn, left, described = getattr(tf.raw_ops, self.type), iter(inputs), self.op.op_def
        names = [name for name in inspect.signature(fn).parameters if name != "name"]
        given = {name: self.attr(name) for name in names if name in self.op.node_def.attr}
        others = iter([name for name in names if name not in given])
        for each, name in zip(described.input_arg, others):
            count = self.attr(each.number_attr) if each.number_attr else None
            given[name] = next(left) if count is None else [next(left) for _ in range(count)]
        # Python has other names for some attributes, and none for those that inputs tell.
        told = {name for each in described.input_arg for name in (each.type_attr, each.number_attr, *given)}
        renamed = [each.name for each in described.attr if each.name not in told]
        given.update(zip(others, map(self.attr, renamed)))
        with tf.init_scope(), tf.device("CPU:0"):
            try:
                return [tensor.numpy() for tensor in tf.nest.flatten(fn(**given))]
            except tf.errors.OpError:
                raise Unknown from None

    def find_traced_shape(self, number: int = 0) -> Shape:
        """Return TensorFlow's static shape of an output, without its extents where it took a wrong one of an input.

        TensorFlow's shape of `x[:9]` has 9 samples, also for a batch of 7.
        """
        shape = shape_of(self.op.outputs[number].shape)
        for tensor, value in zip(self.op.inputs, self.values):
            given = shape_of(tensor.shape) if tensor.dtype not in (tf.resource, tf.variant) else None
            if given is not None and not _agree(given, value.shape):
                return shape and [None for _ in shape]
        return shape

    def static(self, number: int = 0, infers: bool = False) -> list[Extent]:
        """Return TensorFlow's static shape of an output; with `infers`, from what is known here of the inputs.

        That is for operations whose extents TensorFlow never takes from a number alone, as it does for `x[:9]`.
        """
        if not infers or not any(map(_knows_more, self.op.inputs, self.values)):
            return require(self.find_traced_shape(number))
        with scratch_graph():
            given = [
                tf.compat.v1.placeholder(
                    value.dtype, value.shape and [n if isinstance(n, int) else None for n in value.shape]
                )
                if (known := plain(value.constant)) is None
                else tf.constant(known, value.dtype)
                for value in self.values
            ]
            return require(shape_of(copy_into_graph(self.op, given, {}).outputs[number].shape))


@dataclasses.dataclass
class ReplicaCall(Call):
    """A call that is copied for a replica.

    Attributes:
        made: the labels of its outputs, before the local factor that makes them values of the global batch.
        places: those of the replica along the axes of the mesh.
        make: `make(given)`, its outputs; it can change attributes.
    """

    made: Sequence[Labels]
    places: Sequence[Replica]
    make: Callable[..., list[Any]]


@dataclasses.dataclass
class View(Call):
    """A call, the labels of its inputs along an axis of the mesh, and the shapes of its outputs.

    `value_of` knows any tensor of the graph; `mesh` is the axis of the mesh, and `number` its place there.
    """

    out_shapes: Shapes
    value_of: Callable[[tf.Tensor], Value | None]
    mesh: MeshAxis = BATCH
    number: int = 0

    @cached_property
    def labels(self) -> list[Label]:
        """The label of each input."""
        return [value.labels[self.number] for value in self.values]

    def samples(self, number: int = 0) -> Label:
        """Return the label of an input that is SHARDED."""
        label = self.labels[number]
        if not label.is_sharded:
            raise Unknown
        return label

    def out_shape(self, number: int = 0) -> list[Extent]:
        """Return the shape of an output."""
        return require(self.out_shapes[number])

    def depends_on_batch(self) -> list[int]:
        """Return the axes of the first output whose extents depend on the size of the batch, as far as they are known."""
        return [axis for axis, extent in enumerate(self.out_shapes[0] or ()) if is_open(extent)]

    def samples_axis(self) -> int | None:
        """Return the axis of the first output that has the samples; None where it has none, or it is not known."""
        axes = self.depends_on_batch() if self.mesh.of_batch else []
        return axes[0] if len(axes) == 1 and self.mesh.divides(self.out_shape()[axes[0]]) else None

    def align(self, lead: Label, axes: Mapping[int, int], equal: bool = False) -> Wants:
        """Request the samples of `lead` along an axis of each of these inputs; an input with axis -1 is used whole.

        `equal`: whether the operation needs these axes to have one extent, so that one which is not known has it, too.
        """
        wants: Wants = [None] * len(self.labels)
        for number, axis in axes.items():
            if axis < 0:
                wants[number] = REPLICATED
            elif not are_together(self.labels[number], lead._replace(axis=axis)):
                extent = self.shape(number)[axis]
                unknown = equal and extent is None and self.mesh.of_batch
                if lead.chosen or not (unknown or self.mesh.divides(extent, lead.blocks)):
                    raise Unknown
                wants[number] = label_sharded(axis, lead.blocks)
        return wants

    def gather(self) -> Ruling:
        """Request whole inputs, as on a single device."""
        return [REPLICATED] * len(self.labels), [REPLICATED] * self.count

    def keep(self, label: Label, data: int = 0) -> Ruling:
        """Take the input `data` unchanged, and the others whole; all outputs have one label."""
        wants: Wants = [None if number == data else REPLICATED for number in range(len(self.labels))]
        return wants, [label] * self.count


def _agree(traced: list[Extent], shape: Shape) -> bool:
    return shape is not None and all(a is None or a == b for a, b in zip(traced, shape))


def _knows_more(tensor: tf.Tensor, value: Value) -> bool:
    """Return whether an extent or a number of an input is known here that TensorFlow did not know in the trace."""
    if plain(value.constant) is not None and tf.get_static_value(tensor) is None:
        return True
    traced = shape_of(tensor.shape) or [None] * len(value.shape or ())
    return any(a is None and isinstance(b, int) for a, b in zip(traced, value.shape or ()))


def name_axes(count: int, after: int = 0) -> str:
    """Return letters for so many axes, after so many others."""
    return "".join(chr(ord("a") + after + n) for n in range(count))


def keep_shape(number: int = 0) -> Callable[[Call], Shapes]:
    """Return the rule of an operation whose first output has the shape of an input."""
    return lambda call: [call.values[number].shape]


def shape_in(number: int, rest: int | None = None) -> Callable[[Call], Shapes]:
    """Return the rule of a shape that an input contains, with the axes of the input `rest` after it."""
    return lambda call: [
        require(extents_of(call.constant(number))) + ([] if rest is None else call.shape(rest))
    ]
