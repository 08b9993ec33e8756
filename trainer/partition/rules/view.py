"""A rule's view of an operation, and the table of all rules."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from ..labels import REPLICATED, Label, are_together, is_partial, is_sharded, label_sharded
from ..program import BATCH, MeshAxis, Value, find_varying_axes
from ..sizes.size import Extent, Shape
from ..sizes.size_arrays import Unknown, plain

Wants = list[Label | None]
Ruling = tuple[Wants, list[Label]]
Rule = Callable[["View"], Ruling]

PARTIAL_MEAN = Label("partial mean")
"""Label of an output: the mean over this replica's samples; times its share of the batch it is a term of a sum."""

RULES: dict[str, Rule] = {}


class Gather(Exception):
    """A rule needs whole inputs: a label or an unknown size does not allow anything else."""


def rule(*types: str, linear_in: int | None = None) -> Callable[[Rule], Rule]:
    """Register a rule for operations of these types.

    A rule is `fn(view) -> (wants, made)`: the labels with which the operation can compute, None where an input is used
    unchanged, and the labels of its outputs. It raises `Gather` for whole inputs. Every rule has a test that compares uneven
    parts with the whole. A rule with `linear_in` is for samples of that input: partial sums of it make partial sums, and
    any other label of it needs whole inputs.
    """

    def enter(function: Rule) -> Rule:
        def check_ruling(view: View) -> Ruling:
            try:
                if linear_in is not None:
                    if is_partial(view.labels[linear_in]):
                        return view.keep(view.labels[linear_in], linear_in)
                    view.samples(linear_in)
                return function(view)
            except (Gather, Unknown):
                return view.gather()

        for name in types:
            assert name not in RULES, name
            RULES[name] = check_ruling
        return function

    return enter


Known = TypeVar("Known")


def require_known(value: Known | None) -> Known:
    """Return `value`; raise `Gather` where it is not known."""
    if value is None:
        raise Gather
    return value


@dataclasses.dataclass
class View:
    """An operation, the labels of its inputs along an axis of the mesh, and its known sizes.

    Methods raise `Gather` for what is not known. `out_shapes` has the shape of each output; `value_of` knows any tensor of
    the graph; `mesh` is the axis of the mesh, and `number` its place there.
    """

    op: tf.Operation
    values: Sequence[Value]
    out_shapes: Sequence[Shape]
    value_of: Callable[[tf.Tensor], Value | None]
    mesh: MeshAxis = BATCH
    number: int = 0

    def __post_init__(self) -> None:
        self.labels = [value.labels[self.number] for value in self.values]

    @property
    def type(self) -> str:
        """The type of the operation."""
        return self.op.type

    def attr(self, name: str) -> Any:
        """Return an attribute; bytes as text."""
        found = self.op.get_attr(name)
        return found.decode() if isinstance(found, bytes) else found

    def samples(self, number: int = 0, mixed: Collection[int] = ()) -> Label:
        """Return the label of an input that is SHARDED, along an axis which the operation does not mix."""
        label = self.labels[number]
        if not is_sharded(label) or label.axis in mixed:
            raise Gather
        return label

    def shape(self, number: int) -> list[Extent]:
        """Return the shape of an input."""
        return require_known(self.values[number].shape)

    def rank(self, number: int) -> int:
        """Return the rank of an input."""
        return len(self.shape(number))

    def out_rank(self) -> int:
        """Return the rank of the first output."""
        return len(self.out_shape())

    def out_shape(self, number: int = 0) -> list[Extent]:
        """Return the shape of an output."""
        return require_known(self.out_shapes[number])

    def constant(self, number: int) -> np.ndarray:
        """Return the value of an input, as sizes."""
        return require_known(self.values[number].constant)

    def require_fixed(self, number: int) -> np.ndarray:
        """Return the value of an input that does not depend on the size of the batch."""
        return require_known(plain(self.values[number].constant))

    def axes(self, number: int, data: int = 0) -> list[int]:
        """Return the axes of the input `data` from an axis input, counted from 0."""
        return [int(axis) % max(self.rank(data), 1) for axis in np.ravel(self.require_fixed(number))]

    def depends_on_batch(self) -> list[int]:
        """Return the axes of the first output whose extents depend on the size of the batch, as far as they are known."""
        return find_varying_axes(self.out_shapes[0]) or []

    def samples_axis(self) -> int | None:
        """Return the axis of the first output that has the samples; None where it has none, or it is not known."""
        axes = self.depends_on_batch() if self.mesh.of_batch else []
        return axes[0] if len(axes) == 1 and self.mesh.divides(self.out_shape()[axes[0]]) else None

    def constant_of(self, tensor: tf.Tensor) -> np.ndarray | None:
        """Return the value of any tensor of the graph, as sizes; None where it is not known."""
        value = self.value_of(tensor)
        return None if value is None else value.constant

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
                    raise Gather
                wants[number] = label_sharded(axis, lead.blocks)
        return wants

    def without_axes(self, axes: Collection[int]) -> Ruling:
        """Label an operation that drops these axes of its first input."""
        label = self.samples(0, axes)
        return self.keep(label._replace(axis=label.axis - sum(axis < label.axis for axis in set(axes))))

    def gather(self) -> Ruling:
        """Request whole inputs, as on a single device."""
        return [REPLICATED] * len(self.labels), [REPLICATED] * len(self.op.outputs)

    def keep(self, label: Label, data: int = 0) -> Ruling:
        """Take the input `data` unchanged, and the others whole; all outputs have one label."""
        wants: Wants = [None if number == data else REPLICATED for number in range(len(self.labels))]
        return wants, [label] * len(self.op.outputs)
