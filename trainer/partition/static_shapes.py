"""The shapes of the tensors of a traced graph for two sizes of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.static_shapes import with_static_shapes
from .program import Shape, Value, shape_of


class StaticShapes:
    """The shapes of the tensors of a graph for each of `PROBES`, as TensorFlow infers them.

    TensorFlow does not infer the outputs of loops and branches, nor the elements of lists; the pass knows these.
    """

    def __init__(self, graph: Any, inputs: Sequence[Value]) -> None:
        self._graph, self._inputs = graph, inputs
        self._known: dict[str, Any] = {}
        constants = {t.name: v.elements for t, v in zip(graph.inputs, inputs) if v.elements is not None}
        for op in graph.get_operations() if constants else ():
            found = constants.get(op.inputs[0].name) if op.type == "TensorListPopBack" else None
            if found is not None:
                self._known[op.outputs[1].name] = tuple((None, constant) for constant in found)
        self._found = self._inferred()

    def of(self, tensor: Any) -> list[Shape]:
        """The shapes of a tensor."""
        return [shape_of(found.get(tensor.name, tensor.shape)) for found in self._found]

    def say(self, op: tf.Operation, values: Sequence[Value]) -> None:
        """Sets the shapes of an operation's outputs."""
        better = {
            tensor.name: tuple((shape, None) for shape in value.shapes)
            for tensor, value in zip(op.outputs, values)
            if tensor.dtype != tf.resource and _says_more(value.shapes, self.of(tensor))
        }
        if better:
            self._known |= better
            self._found = self._inferred()

    def set(self, tensor: Any, shapes: Sequence[Shape]) -> None:
        """Mark what is computed from a tensor's value, or from its extents that `shapes` leaves open, as unknown."""
        self._known[tensor.name] = tuple((shape, None) for shape in shapes)
        self._found = self._inferred()

    def _inferred(self) -> list[dict[str, Any]]:
        return [
            with_static_shapes(
                self._graph,
                [value.shapes[probe] for value in self._inputs],
                {name: both[probe] for name, both in self._known.items()},
            )
            for probe in (0, 1)
        ]


def _says_more(known: Sequence[Shape], found: Sequence[Shape]) -> bool:
    """Whether a shape has an extent that another one does not have."""
    return any(
        a is not None and (b is None or any(x is not None and y is None for x, y in zip(a, b)))
        for a, b in zip(known, found)
    )
