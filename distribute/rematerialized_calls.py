"""Calls under `keras.RematScope` and `keras.remat`: noted in the trace of a step, for `trainer/partition/memory.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..compat.patches import wrap
from ..compat.tensorflow_graphs.edges import next_number, number_of
from .step_context import current_step

_CALLS = "calls under keras.remat"


@dataclasses.dataclass(eq=False)
class _Call:
    """One call, with its tensors, in a graph.

    Its operations have numbers from `first` to before `last`. `of_model`: a model was called.
    """

    graph: Any
    first: float
    last: float
    results: list[tf.Tensor]
    of_model: bool

    def is_around(self, other: _Call) -> bool:
        """Return whether `other` was made inside it."""
        return other is not self and self.first <= other.first and other.last <= self.last

    def operations(self) -> set[str]:
        """Return the names of the operations that lead to its results, without those that make them."""
        kept = {tensor.op.name for tensor in self.results}
        found, todo = set[str](), [tensor.op for tensor in self.results]
        while todo:
            op = todo.pop()
            if op.name not in found and op.graph is self.graph and number_of(op) >= self.first:
                found.add(op.name)
                todo.extend(tensor.op for tensor in op.inputs)
        return found - kept


def _remat(original: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `remat` of Keras' TensorFlow backend; use TensorFlow's own outside our steps, where it works."""
    of_tensorflow = original(f)

    def call(*args: Any, **kwargs: Any) -> Any:
        if current_step() is None and (tf.executing_eagerly() or not kwargs):
            return of_tensorflow(*args, **kwargs)
        if current_step() is None or tf.executing_eagerly():
            return f(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        first = next_number(graph)
        results = f(*args, **kwargs)
        tensors = [t for t in tf.nest.flatten(results, expand_composites=True) if tf.is_symbolic_tensor(t)]
        of_model = isinstance(getattr(f, "__self__", None), keras.Model)
        graph.get_collection_ref(_CALLS).append(_Call(graph, first, next_number(graph), tensors, of_model))
        return results

    return call


wrap("remat", _remat)


def calls_in(graph: Any) -> list[set[str]]:
    """Return the names of the operations of each call in a graph, which are to be rematerialized.

    Of nested calls the outermost counts, unless it is that of a whole model with such calls inside.
    """
    calls: Sequence[_Call] = [each for each in graph.get_collection_ref(_CALLS) if each.graph is graph]
    parts = [each for each in calls if not (each.of_model and any(map(each.is_around, calls)))]
    return [each.operations() for each in parts if not any(other.is_around(each) for other in parts)]
