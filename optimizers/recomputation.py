"""Activations that the backward pass computes again instead of keeping them: `keras.RematScope`, `keras.remat`, in a graph.

A tensor in a graph lives from where it is made to its last use, and the backward pass uses what the forward pass made. For
what a call under `keras.remat` made it is given a second tensor: the same operations on the same inputs, computed when the
backward pass comes there. The user's code runs once, the graph is changed after the gradient was taken, and each operation
that draws, reads or writes is left as it is: masks, averages and counts are those of the one pass.

Kept are what goes into the call, its results, and what its operations with effects, functions, branches and loops make. Of
calls inside of one another the outermost is meant, unless it is that of a whole model with such calls inside.

TensorFlow's own `tf.recompute_grad` runs the user's code twice: random layers draw again, averages move twice. In a graph it
takes no keyword arguments, which Keras gives it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..compat.edges import (
    is_of_a_gradient,
    is_stateless,
    made_again,
    made_in_backward_pass,
    next_number,
    number_of,
    read_instead,
)
from ..compat.replaced import wrap
from ..distribute.replicas import local_replica_index
from ..distribute.step_context import current_step

_KEPT = ("Const", "Placeholder", "ReadVariableOp")  # what takes no memory of its own, or little


@dataclasses.dataclass(eq=False)
class _Call:
    """One call that is computed again.

    Attributes:
        graph: in which it was made.
        first, last: its operations have numbers from `first` to before `last`.
        results: its tensors.
        of_model: whether a model was called.
    """

    graph: Any
    first: float
    last: float
    results: list[tf.Tensor]
    of_model: bool

    def is_around(self, other: _Call) -> bool:
        """Whether `other` was made inside of it."""
        return other is not self and self.first <= other.first and other.last <= self.last


def _remat(original: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
    """What `remat` of Keras' TensorFlow backend gives: TensorFlow's own, but for what it refuses, and in steps of ours."""
    recomputed = original(f)

    def call(*args: Any, **kwargs: Any) -> Any:
        if current_step() is None and (tf.executing_eagerly() or not kwargs):
            return recomputed(*args, **kwargs)
        if current_step() is None or tf.executing_eagerly():
            return f(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        first = next_number(graph)
        results = f(*args, **kwargs)
        tensors = [t for t in tf.nest.flatten(results, expand_composites=True) if tf.is_symbolic_tensor(t)]
        of_model = isinstance(getattr(f, "__self__", None), keras.Model)
        _calls_in(graph).append(_Call(graph, first, next_number(graph), tensors, of_model))
        return results

    return call


wrap("remat", _remat)


def compute_again() -> None:
    """Lets the backward pass of this replica, as far as it was made, compute again what was made in calls that say so.

    Context: replica, where gradients were taken and before they are used; nothing happens in eager mode.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    for call in _outermost([each for each in _calls_in(graph) if each.graph is graph]):
        _Again(call).change()


def _calls_in(graph: Any) -> list[_Call]:
    """The calls of this replica in a graph. Graphs inside of it, and around it, are handed what it holds."""
    return graph.get_collection_ref(f"calls computed again, replica {local_replica_index()}")


def _outermost(calls: Sequence[_Call]) -> list[_Call]:
    parts = [each for each in calls if not (each.of_model and any(map(each.is_around, calls)))]
    return [each for each in parts if not any(other.is_around(each) for other in parts)]


class _Again:
    """The second computation of one call, for the operations of the backward pass that use what it made."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._results = {tensor.ref() for tensor in call.results}
        self._inside = self._operations()
        self._twins: dict[Any, tf.Tensor] = {}

    def change(self) -> None:
        """Changes the graph; nothing happens where no gradient was taken."""
        reads = sorted(self._reads(), key=lambda read: number_of(read[0]))
        start = next((index for index, (op, _) in enumerate(reads) if self._arriving(op)), None)
        if start is None:
            return
        first, reads = reads[start][0], reads[start:]
        with (
            made_in_backward_pass(self._call.graph, first),
            tf.control_dependencies(None),
            tf.control_dependencies([tensor.op for tensor in self._arriving(first)]),
        ):
            for op in self._needed([tensor for _, tensor in reads]):
                inputs = [self._again(tensor) for tensor in op.inputs]
                self._twins.update({old.ref(): new for old, new in zip(op.outputs, made_again(op, inputs))})
        for op, tensor in reads:
            read_instead(op, tensor, self._twins[tensor.ref()])

    def _arriving(self, op: tf.Operation) -> list[tf.Tensor]:
        """The gradients that an operation of the backward pass reads: numbers that were made after the call."""
        return [t for t in op.inputs if _is_of_numbers(t) and number_of(t.op) >= self._call.last]

    def _operations(self) -> dict[str, tf.Operation]:
        """What the results are computed with, as far as it was made in the call and can be computed again."""
        found: dict[str, tf.Operation] = {}
        todo = [tensor.op for tensor in self._call.results]
        while todo:
            op = todo.pop()
            if op.name in found or op.graph is not self._call.graph or number_of(op) < self._call.first:
                continue
            found[op.name] = op
            todo.extend(tensor.op for tensor in op.inputs)
        return {name: op for name, op in found.items() if op.type not in _KEPT and is_stateless(op)}

    def _reads(self) -> Iterator[tuple[tf.Operation, tf.Tensor]]:
        """The operations of the backward pass that use what is not kept, and what they use.

        Those that look at its shape alone do so during the forward pass, and hold nothing.
        """
        for tensor in itertools.chain.from_iterable(op.outputs for op in self._inside.values()):
            if tensor.ref() not in self._results:
                for op in {each.name: each for each in tensor.consumers()}.values():
                    if is_of_a_gradient(op) and any(map(_is_of_numbers, op.outputs)):
                        yield op, tensor

    def _needed(self, tensors: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """What must be computed again for these, in the order in which it was made."""
        needed: dict[str, tf.Operation] = {}
        todo = list(tensors)
        while todo:
            op = todo.pop().op
            if op.name in self._inside and op.name not in needed:
                needed[op.name] = op
                todo.extend(tensor for tensor in op.inputs if tensor.ref() not in self._results)
        return sorted(needed.values(), key=number_of)

    def _again(self, tensor: tf.Tensor) -> tf.Tensor:
        """What stands for a tensor in the second computation: a kept one waits until the backward pass is there."""
        if tensor.op.type == "Const":
            return tensor
        if tensor.ref() not in self._twins:
            with tf.device(tensor.op.device):
                self._twins[tensor.ref()] = tf.identity(tensor)
        return self._twins[tensor.ref()]


def _is_of_numbers(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_complex
