"""Rematerialization (activation checkpointing) in a graph: `keras.RematScope` and `keras.remat`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..compat.patches import wrap
from ..compat.tensorflow_graphs.edges import (
    holds_numbers,
    is_of_a_gradient,
    is_stateless,
    made_again,
    made_in_backward_pass,
    next_number,
    number_of,
    read_instead,
)
from ..distribute.replicas import local_replica_index
from ..distribute.step_context import current_step

_KEPT = ("Const", "Placeholder", "ReadVariableOp")  # they take little or no memory


@dataclasses.dataclass(eq=False)
class _Call:
    """One call under `keras.remat`, with its tensors, in a graph.

    Its operations have numbers from `first` to before `last`. `of_model`: a model was called.
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
    """`remat` of Keras' TensorFlow backend: TensorFlow's own outside of our steps, where it works."""
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
        _calls_in(graph).append(_Call(graph, first, next_number(graph), tensors, of_model))
        return results

    return call


wrap("remat", _remat)


def rematerialize() -> None:
    """Lets the backward pass of this replica, as far as it is in the graph, rematerialize the activations of such calls.

    The backward pass gets a second copy of a call's activations: the same operations on the same inputs, computed when
    it needs them. The user's code runs once (`tf.recompute_grad` runs it twice, and moves averages twice). Kept are the
    inputs and results of the call, and the outputs of its functions, branches, loops and operations with side effects.
    Of nested calls the outermost counts, unless it is that of a whole model with such calls inside.

    Context: replica, where gradients were taken and before they are used; nothing happens in eager mode.
    """
    if tf.executing_eagerly():
        return
    graph = tf.compat.v1.get_default_graph()
    for call in _outermost([each for each in _calls_in(graph) if each.graph is graph]):
        _change(call)


def _calls_in(graph: Any) -> list[_Call]:
    """The calls of this replica in a graph; a graph shares its collections with those inside of it, and around it."""
    return graph.get_collection_ref(f"calls under keras.remat, replica {local_replica_index()}")


def _outermost(calls: Sequence[_Call]) -> list[_Call]:
    parts = [each for each in calls if not (each.of_model and any(map(each.is_around, calls)))]
    return [each for each in parts if not any(other.is_around(each) for other in parts)]


def _change(call: _Call) -> None:
    """Adds the second computation of a call for the backward pass; nothing happens where no gradient was taken."""
    inside, kept, copies = _operations(call), {tensor.ref() for tensor in call.results}, {}
    reads = sorted(_reads(inside, kept), key=lambda read: number_of(read[0]))
    start = next((index for index, (op, _) in enumerate(reads) if _arriving(call, op)), None)
    if start is None:
        return
    first, reads = reads[start][0], reads[start:]

    def copy_of(tensor: tf.Tensor) -> tf.Tensor:
        """That of a kept tensor waits until the backward pass needs it."""
        if tensor.op.type == "Const":
            return tensor
        if tensor.ref() not in copies:
            with tf.device(tensor.op.device):
                copies[tensor.ref()] = tf.identity(tensor)
        return copies[tensor.ref()]

    with (
        made_in_backward_pass(call.graph, first),
        tf.control_dependencies(None),
        tf.control_dependencies([tensor.op for tensor in _arriving(call, first)]),
    ):
        for op in _needed([tensor for _, tensor in reads], inside, kept):
            again = made_again(op, [copy_of(tensor) for tensor in op.inputs])
            copies.update({old.ref(): new for old, new in zip(op.outputs, again)})
    for op, tensor in reads:
        read_instead(op, tensor, copies[tensor.ref()])


def _arriving(call: _Call, op: tf.Operation) -> list[tf.Tensor]:
    """The gradients that an operation of the backward pass reads: numbers that were made after the call."""
    return [t for t in op.inputs if holds_numbers(t) and number_of(t.op) >= call.last]


def _operations(call: _Call) -> dict[str, tf.Operation]:
    """The operations of the call that lead to its results and can be rematerialized."""
    found: dict[str, tf.Operation] = {}
    todo = [tensor.op for tensor in call.results]
    while todo:
        op = todo.pop()
        if op.name not in found and op.graph is call.graph and number_of(op) >= call.first:
            found[op.name] = op
            todo.extend(tensor.op for tensor in op.inputs)
    return {name: op for name, op in found.items() if op.type not in _KEPT and is_stateless(op)}


def _reads(inside: dict[str, tf.Operation], kept: set[Any]) -> Iterator[tuple[tf.Operation, tf.Tensor]]:
    """The operations of the backward pass that use activations that are not kept, and these activations.

    Operations that read only a shape do so during the forward pass, and keep nothing alive.
    """
    for tensor in itertools.chain.from_iterable(op.outputs for op in inside.values()):
        if tensor.ref() not in kept:
            for op in {each.name: each for each in tensor.consumers()}.values():
                if is_of_a_gradient(op) and any(map(holds_numbers, op.outputs)):
                    yield op, tensor


def _needed(tensors: list[tf.Tensor], inside: dict[str, tf.Operation], kept: set[Any]) -> list[tf.Operation]:
    """The operations to rematerialize for these tensors, in their order."""
    needed: dict[str, tf.Operation] = {}
    while tensors:
        op = tensors.pop().op
        if op.name in inside and op.name not in needed:
            needed[op.name] = op
            tensors.extend(tensor for tensor in op.inputs if tensor.ref() not in kept)
    return sorted(needed.values(), key=number_of)
