"""Transient full-size weights: a sharded weight is all-gathered just before a step uses it, and freed after that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.edges import (
    graph_of_replica,
    is_stateless,
    made_again,
    newly_needed,
    number_of,
    read_instead,
)
from ...compat.tensorflow_graphs.gradients import is_of_a_gradient
from ..replicas import local_replica_index
from .collectives import all_gather

KEPT = ("Const", "ReadVariableOp")  # operations without memory for their results, or with little


@dataclasses.dataclass(eq=False)
class _Gather:
    """One all-gather of a weight: from this replica's shard at the time of the read to the tensor that the step reads.

    `shape` is that of the whole weight, and `awaited` are the dependencies that the gather waits for.
    """

    shard: tf.Tensor
    shape: list[int]
    whole: tf.Tensor
    awaited: Sequence[tf.Operation]


def transient_weight(shard: Callable[[], tf.Tensor], shape: Sequence[int]) -> tf.Tensor:
    """The whole weight of this shape, gathered from what `shard()` reads just before its first use in the step.

    A tensor in a graph lives until its last use, so the backward pass reads a second tensor, gathered then: the graph
    is changed after the gradient was taken. Each gather waits for the first use of the previous weight: at most two
    have their full size.

    In a function, branch or loop that the replica's code traces, it is gathered before that begins. Context: replica.
    """
    graph = graph_of_replica()
    if graph is None:
        return all_gather([shard()], [shape])[0]
    with graph.as_default():
        BackwardPass().gather_until()  # of an earlier gradient: the weight read now may depend on it
        weights = _weights_of(graph)
        awaited, own = weights.last_used_with(), shard()
        gathered = _gathered(own, shape, awaited)
        weights.gathers[gathered.ref()] = _Gather(own, list(shape), gathered, awaited)
    return gathered


def _gathered(shard: tf.Tensor, shape: Sequence[int], awaited: Sequence[tf.Operation]) -> tf.Tensor:
    with tf.control_dependencies(awaited):
        return all_gather([tf.identity(shard)], [shape])[0]


def _weights_of(graph: Any) -> _Weights:
    """The gathered weights of this replica in a graph."""
    return held_by(graph, f"gathered weights, replica {local_replica_index()}", _Weights)


def holds_numbers(tensor: tf.Tensor) -> bool:
    """Whether a tensor has floating point numbers, as activations and gradients do: no shape, index or condition."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def held_by(graph: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """An object that a graph holds under a name, created on first use; inner and outer graphs share it."""
    held = graph.get_collection_ref(name)
    found = next((each for each in held if each.graph is graph), None)
    if found is None:
        found = make(graph)
        held.append(found)
    return found


class _Weights:
    """The weights that one replica has gathered in a graph, in the order of the reads; in eager mode (`graph` None) none.

    It also knows tensors that depend on weights alone, such as casts.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.gathers: dict[Any, _Gather] = {}  # by the reference of the whole tensor
        self._known: dict[Any, bool] = {}

    def last_used_with(self) -> Sequence[tf.Operation]:
        """The first operation that uses the weight read last, if there is one already."""
        if not self.gathers:
            return ()
        last = next(reversed(self.gathers.values()))
        uses = self._uses(last.whole)
        return self.others(uses[0]) if uses else last.awaited

    def has(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor depends on weights alone."""
        return tensor.ref() in self.gathers or tensor.op.type in KEPT or self.makes(tensor.op)

    def makes(self, op: tf.Operation) -> bool:
        """Whether all inputs of an operation depend on weights alone."""
        if op.name not in self._known:
            self._known[op.name] = False  # loops of the graph end here
            self._known[op.name] = bool(op.inputs) and is_stateless(op) and all(map(self.has, op.inputs))
        return self._known[op.name]

    def _uses(self, tensor: tf.Tensor) -> list[tf.Operation]:
        """The operations that use a weight, or its cast, with another input; in their order."""
        found, todo = {}, [tensor]
        while todo:
            for op in todo.pop().consumers():
                if op.name not in found and self.makes(op):
                    todo.extend(op.outputs)
                found[op.name] = op
        return sorted((op for op in found.values() if not self.makes(op)), key=number_of)

    def others(self, op: tf.Operation) -> list[tf.Operation]:
        """The sources of an operation's inputs that are not weights."""
        return [tensor.op for tensor in op.inputs if not self.has(tensor)]

    def made_of(self, tensor: tf.Tensor) -> Iterator[_Gather]:
        """The weights that a tensor depends on."""
        if tensor.ref() in self.gathers:
            yield self.gathers[tensor.ref()]
        elif tensor.op.type not in KEPT:
            for each in tensor.op.inputs:
                yield from self.made_of(each)

    def again(self, tensor: tf.Tensor, twins: dict[Any, tf.Tensor]) -> tf.Tensor:
        """A copy of `tensor` that uses the second gathers of its weights: `twins`, which grows."""
        if tensor.ref() not in twins:
            if tensor.op.type in KEPT:
                return tensor
            outputs = made_again(tensor.op, [self.again(each, twins) for each in tensor.op.inputs])
            twins.update({old.ref(): new for old, new in zip(tensor.op.outputs, outputs)})
        return twins[tensor.ref()]


class BackwardPass:
    """The weights that the backward pass of this replica uses, gathered a second time; created after gradients were taken.

    Context: replica; a graph, or nothing happens.
    """

    def __init__(self) -> None:
        graph = graph_of_replica()
        self._weights = _Weights(None) if graph is None else _weights_of(graph)
        self._twins: dict[Any, tf.Tensor] = {}
        self._reads = sorted(self._found(), key=lambda read: number_of(read[0]))
        self._first = number_of(self._reads[0][0]) if self._reads else 0
        self._leave_to_collectives()
        self._awaited: Sequence[tf.Operation] = ()

    def _found(self) -> Iterator[tuple[tf.Operation, tf.Tensor]]:
        """Each operation of the backward pass that reads a tensor that the forward pass made of weights alone."""
        seen, todo = set(), [gather.whole for gather in self._weights.gathers.values()]
        while todo:
            tensor = todo.pop()
            for op in {each.name: each for each in tensor.consumers()}.values():
                if is_of_a_gradient(op):
                    yield op, tensor
                elif op.name not in seen and self._weights.makes(op):
                    seen.add(op.name)
                    todo.extend(op.outputs)

    def _leave_to_collectives(self) -> None:
        """Keeps the first tensor for the dependencies of existing collectives: a second gather would run after them.

        Such are the collectives of a backward pass (batch normalization over all replicas) and a step's reductions of
        gradients before the optimizer has them. These weights keep their full size until then.
        """
        if self._reads:
            needed: set[str] = set()
            ops = self._weights.graph.get_operations()
            newly_needed([op for op in ops if op.type.startswith("Collective")], self._first, needed)
            self._reads = [(op, tensor) for op, tensor in self._reads if op.name not in needed]

    def gather_until(self, tensors: Sequence[tf.Tensor] | None = None) -> None:
        """Gathers, in the order of the backward pass, the weights used until the last of `tensors` is ready, and one more.

        They are of the backward pass, or computed from it. None: all remaining weights are gathered.
        """
        if not self._reads:
            return
        end = None if tensors is None else max(map(self._made_at, tensors))
        while self._reads and (end is None or number_of(self._reads[0][0]) <= end):
            self._gather_next()
        if self._reads:
            self._gather_next()

    def _made_at(self, tensor: tf.Tensor) -> float:
        """The number of the last operation of the backward pass that a tensor depends on."""
        last, todo, seen = 0, [tensor.op], set()
        while todo:
            op = todo.pop()
            if op.name in seen or number_of(op) < self._first:
                continue
            seen.add(op.name)
            if is_of_a_gradient(op):
                last = max(last, number_of(op))
            else:
                todo.extend(each.op for each in op.inputs)
        return last

    def _gather_next(self) -> None:
        op, tensor = self._reads.pop(0)
        for gather in self._weights.made_of(tensor):
            self._gather(gather, op)
        read_instead(op, tensor, self._weights.again(tensor, self._twins))

    def _gather(self, gather: _Gather, first: tf.Operation) -> None:
        if gather.whole.ref() in self._twins:
            return
        used_with = self._used_with(first)
        again = _gathered(gather.shard, gather.shape, self._awaited or used_with)
        self._twins[gather.whole.ref()] = again
        self._awaited = used_with

    def _used_with(self, op: tf.Operation) -> list[tf.Operation]:
        """An earlier input, no weight, of an operation of the backward pass or of a user of its result.

        No operation created before it depends on it, so other operations may wait for it.
        """
        todo = [op]
        while todo:
            todo.sort(key=number_of)
            nearest = todo.pop(0)
            others = self._weights.others(nearest)
            if others or not self._weights.makes(nearest):
                return [each for each in others if number_of(each) < number_of(op)]
            todo.extend(user for tensor in nearest.outputs for user in tensor.consumers())
        return []
