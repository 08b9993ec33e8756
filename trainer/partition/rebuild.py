"""A partitioned step is copied into the graph of one replica, stage by stage; between them replicas exchange tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...compat.one_device import body_of, copied_into_graph, new_function, on_replica, subgraphs
from .conversions import Exchange, Replica, after, exchanged, local, where
from .labels import PARTIAL_SUM, Label, is_sharded
from .program import Apply, Convert, Copy, Node, Program, Read


def rebuilt(
    program: Program,
    inputs: Sequence[tf.Tensor],
    replica: Replica,
    apply: Callable[[int, list[tf.Tensor]], None] | None = None,
    read: Callable[[int], tf.Tensor] | None = None,
) -> Exchange:
    """Copies a step into the current graph, for one replica.

    Args:
        program: of the step.
        inputs: this replica's part of the batch.
        replica: which.
        apply: called with the number of an optimizer's call, and this replica's parts of the gradients.
        read: called with the number of a read of a sharded weight; returns the whole weight.

    Yields:
        What is asked of all replicas after each stage; is sent the answers.

    Returns:
        The outputs of the step.
    """
    copier = _Copier(program, replica, apply, read)
    values = copier.values
    values.update(zip(program.inputs, inputs))
    values.update((number, on_replica(outer, replica.copy)) for outer, number in program.captures)
    for nodes, exchanges in program.stages():
        for node in nodes:
            copier.add(node)
        if exchanges:
            labels = program.values
            wanted = [(values[e.source], labels[e.source].label, labels[e.target].label) for e in exchanges]
            for node, tensor in zip(exchanges, (yield from exchanged(wanted, replica))):
                values[node.target] = tensor
    return [values[number] for number in program.outputs]


class _Copier:
    """Copies nodes; owns the tensors that they gave."""

    def __init__(self, program: Program, replica: Replica, apply: Any, read: Any = None) -> None:
        self.values: dict[int, Any] = {}
        self._program, self._replica, self._apply, self._read = program, replica, apply, read
        self._copies: dict[int, tf.Operation] = {}

    def add(self, node: Node) -> None:
        """Runs a node that needs no other replica."""
        labels = self._program.values
        if isinstance(node, Convert):
            have, want = labels[node.source].label, labels[node.target].label
            self.values[node.target] = local(self.values[node.source], have, want, self._replica)
        elif isinstance(node, Read):
            self.values[node.outputs[0]] = self._read(node.number)
        elif isinstance(node, Apply):
            assert self._apply is not None
            alive = self._replica.alive
            given = [(self.values[each], labels[each]) for each in node.inputs]
            masked = [where(alive, t) if is_sharded(v.label) and v.dtype.is_floating else t for t, v in given]
            self._apply(node.number, masked)
        else:
            self._copy(node)

    def _copy(self, node: Copy) -> None:
        values, known = self._program.values, self._constants(node)
        if known is not None:
            self.values.update(zip(node.outputs, known))
            return
        given = [self.values[number] for number in node.inputs]
        given += self._replica.unknown if node.bodies else []
        functions = {name: self._function(name, body, given, node) for name, body in node.bodies.items()}
        controls = [self._copies[id(op)] for op in node.controls if id(op) in self._copies]
        seed = self._replica.number if node.own_seed else 0
        copy = copied_into_graph(node.op, given, functions, controls, seed, node.attributes)
        self._copies[id(node.op)] = copy
        for number, made, traced, tensor in zip(node.outputs, node.made, node.op.outputs, copy.outputs):
            label = values[number].label
            _set_shape(tensor, traced, label)
            if node.op.type == "Where" and label.counts:
                extent, held = tf.size(given[0], tf.int64), tf.cast(self._replica.held, tf.int64)
                first = extent * tf.cast(self._replica.start, tf.int64) // held
                self._replica.first_positions[label.chosen] = first
            tensor = after(tensor, made, self._replica)
            if node.of_samples and label == PARTIAL_SUM:
                tensor = where(self._replica.alive, tensor)
            self.values[number] = tensor

    def _constants(self, node: Copy) -> list[tf.Tensor] | None:
        """The outputs of an operation on sizes that does not depend on the batch."""
        values = self._program.values
        if node.op.type in ("Const", "Placeholder") or node.op.op_def.is_stateful:
            return None
        found = []
        for number, tensor in zip(node.outputs, node.op.outputs):
            pair = values[number].constant
            if pair is None or pair[0].shape != pair[1].shape or (pair[0] != pair[1]).any():
                return None
            found.append(tf.constant(pair[0], tensor.dtype))
        return found

    def _function(self, name: str, body: Program, given: Sequence[Any], node: Copy) -> str:
        source = dict(subgraphs(node.op))[name]
        count = len(self._replica.unknown)
        arguments = given[len(given) - len(body.inputs) - count :]
        hands_on = name == body_of(node.op)

        def build(inputs: list[Any]) -> list[Any]:
            numbers = inputs[len(inputs) - count :] if count else []
            copier = _Copier(body, self._replica.with_unknown(numbers), None)
            copier.values.update(zip(body.inputs, inputs))
            for inner in body.nodes:
                copier.add(inner)
            return [copier.values[number] for number in body.outputs] + (numbers if hands_on else [])

        shapes = [_loop_shape(value, tensor) for value, tensor in zip(arguments, source.inputs)]
        return new_function(name + "_on_replica", source, build, shapes, arguments)


def _loop_shape(given: Any, traced: Any) -> Any:
    """The shape of a body's input: where the traced body leaves an axis open it stays open."""
    if given.dtype in (tf.resource, tf.variant) or given.shape.rank is None or traced.shape.rank is None:
        return traced.shape
    if given.shape.is_fully_defined() and traced.shape.is_fully_defined():
        return given.shape
    return [None if b is None else a for a, b in zip(given.shape.as_list(), traced.shape.as_list())]


def _set_shape(tensor: tf.Tensor, traced: tf.Tensor, label: Label) -> None:
    """What `set_shape` had said of the traced tensor is no operation, and is said again."""
    if traced.shape.rank is None or tensor.dtype in (tf.resource, tf.variant):
        return
    shape = traced.shape.as_list()
    if is_sharded(label):
        shape[label.axis] = None
    tensor.set_shape(shape)
