"""A rule's view of an operation, and the table of all rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..labels import REPLICATED, Label, is_partial, is_sharded
from ..program import Shape, Value, varying_axes

Wants = list[Label | None]
Ruling = tuple[Wants, list[Label]]
Rule = Callable[["View"], Ruling]

PARTIAL_MEAN = Label("partial mean")
"""Label of an output: the mean over this replica's samples; times its share of the batch it is a term of a sum."""

RULES: dict[str, Rule] = {}


def rule(*types: str, linear_in: int | None = None) -> Callable[[Rule], Rule]:
    """Registers a rule for operations of these types.

    A rule is `fn(view) -> (wants, made)`: the labels with which the operation can compute, None where an input is used
    unchanged, and the labels of its outputs. Every rule has a test that compares uneven parts with the whole.

    Args:
        types: of operations.
        linear_in: the number of an input, where the rule is for samples of it; of partial sums of it, operations of these
            types make partial sums, and of anything else they make what a single device makes.
    """

    def enter(function: Rule) -> Rule:
        def linear(view: View) -> Ruling:
            label = view.labels[linear_in or 0]
            if is_partial(label):
                return view.kept(label, linear_in or 0)
            return function(view) if is_sharded(label) else view.gathered()

        for name in types:
            assert name not in RULES, name
            RULES[name] = function if linear_in is None else linear
        return function

    return enter


class View:
    """An operation, the labels of its inputs, and its known sizes.

    Args:
        op: the operation.
        inputs: its inputs.
        shapes: for each output its shapes for each of `PROBES`.
        value_of: the known properties of any tensor of the operation's graph.

    Attributes:
        labels: of the inputs.
    """

    def __init__(
        self,
        op: tf.Operation,
        inputs: Sequence[Value],
        shapes: Sequence[tuple[Shape, Shape]],
        value_of: Callable[[tf.Tensor], Value | None],
    ) -> None:
        self.op, self.values, self.out_shapes, self.value_of = op, inputs, shapes, value_of
        self.labels = [value.label for value in inputs]

    @property
    def type(self) -> str:
        """The type of the operation."""
        return self.op.type

    def attr(self, name: str) -> Any:
        """An attribute; bytes as text."""
        found = self.op.get_attr(name)
        return found.decode() if isinstance(found, bytes) else found

    def rank(self, number: int) -> int | None:
        """The rank of an input."""
        shape = self.values[number].shapes[0]
        return None if shape is None else len(shape)

    def out_rank(self, number: int = 0) -> int | None:
        """The rank of an output."""
        shape = self.out_shapes[number][0]
        return None if shape is None else len(shape)

    def shapes(self, number: int) -> tuple[Shape, Shape]:
        """The shapes of an input, for each of `PROBES`."""
        return self.values[number].shapes

    def constant(self, number: int) -> tuple[np.ndarray, np.ndarray] | None:
        """The value of an input for each of `PROBES`."""
        return self.values[number].constant

    def fixed(self, number: int) -> np.ndarray | None:
        """The value of an input, where it does not depend on the size of the batch."""
        found = self.constant(number)
        if found is None or found[0].shape != found[1].shape or not np.array_equal(*found):
            return None
        return found[0]

    def axes(self, number: int, rank: int | None) -> list[int] | None:
        """The axes from an axis input, counted from 0."""
        found = self.fixed(number)
        if found is None or rank is None:
            return None
        return [int(axis) % max(rank, 1) for axis in np.ravel(found)]

    def depends_on_batch(self, number: int = 0) -> list[int]:
        """The axes of an output whose extents depend on the size of the batch, as far as they are known."""
        return varying_axes(self.out_shapes[number]) or []

    def gathered(self) -> Ruling:
        """Requests whole inputs, as on a single device."""
        return [REPLICATED] * len(self.labels), [REPLICATED] * len(self.op.outputs)

    def kept(self, label: Label, data: int = 0) -> Ruling:
        """Takes the input `data` unchanged, and the others whole; all outputs have one label."""
        wants: Wants = [None if number == data else REPLICATED for number in range(len(self.labels))]
        return wants, [label] * len(self.op.outputs)

    def sharded_inputs(self) -> list[int]:
        """The numbers of the inputs that are SHARDED."""
        return [number for number, label in enumerate(self.labels) if is_sharded(label)]
