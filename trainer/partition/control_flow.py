"""Branches and loops: collectives are not supported in their bodies, so inputs are converted before them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_graphs.one_device import inner_graph, subgraphs
from .labels import EMPTY, PARTIAL_SUM, REPLICATED, Label, is_sharded, needs_collective, with_label
from .program import BATCH, Copy, NeedsCollective, NotPartitioned, Program, Value, has_parts
from .sizes.size_arrays import merge_shapes
from .values import Values

_MOST_ROUNDS = 6


def without_collectives(
    outer: Values,
    op: tf.Operation,
    inputs: list[int],
    work: Callable[[Values, tf.Operation, list[int]], list[int]],
) -> list[int]:
    """Partition the bodies of a branch or a loop; bodies that need a collective get whole inputs."""
    for place, number in enumerate(inputs):
        if outer.label(number).counts:
            inputs[place] = outer.convert(number, [outer.label(number)._replace(counts=None)], op)
    # A body is the same for all parts of a model.
    inputs = [outer.convert(number, [None, *outer.replicated_labels[1:]], op) for number in inputs]
    nodes, made = len(outer.program.nodes), dict(outer.made)
    if op.name not in outer.whole_ops:
        try:
            return work(outer, op, inputs)
        except NeedsCollective:
            del outer.program.nodes[nodes:]
            outer.made = made
    whole = [outer.whole(number, op) for number in inputs]
    before, outer.replicated = outer.replicated, True
    try:
        return work(outer, op, whole)
    finally:
        outer.replicated = before


def call(outer: Values, op: tf.Operation, inputs: list[int]) -> list[int]:
    """Add a call of a function that XLA compiles; return the numbers of its outputs."""
    graph = inner_graph(op, "f")
    if graph is None:
        raise NotPartitioned(f"the function that {op.name} calls has no graph")
    builder, outputs = outer.body(graph, inputs, in_order=False)  # XLA ignores seeds
    builder.program.outputs = outputs
    values = [dataclasses.replace(outer.program.values[number]) for number in outputs]
    return _add(outer, op, inputs, values, {op.get_attr("f").name: builder.program})


def _add(
    outer: Values, op: tf.Operation, inputs: list[int], values: list[Value], bodies: dict[str, Program]
) -> list[int]:
    outputs = [outer.add(value) for value in values]
    labels = [value.labels for value in values]
    outer.program.nodes.append(Copy(inputs, outputs, op, labels, bodies))
    return outputs


def branch(outer: Values, op: tf.Operation, inputs: list[int]) -> list[int]:
    """Add a branch; return the numbers of its outputs."""
    which = outer.whole(inputs[0], op)
    found = [(name, *outer.body(graph, inputs[1:])) for name, graph in subgraphs(op)]
    if not found:
        raise NotPartitioned(f"the functions of {op.name} have no graphs")
    values = []
    for numbers in zip(*(outputs for _, _, outputs in found)):
        value = functools.reduce(_merge, map(_without_counts, (outer.program.values[n] for n in numbers)))
        values.append(Value(value.dtype, value.shape, value.labels))
    for _, builder, outputs in found:
        wanted = zip(outputs, values)
        builder.program.outputs = [builder.convert(n, value.labels, op) for n, value in wanted]
    bodies = {name: builder.program for name, builder, _ in found}
    return _add(outer, op, [which, *inputs[1:]], values, bodies)


def loop(outer: Values, op: tf.Operation, inputs: list[int]) -> list[int]:
    """Add a loop; return the numbers of its outputs."""
    body, condition = inner_graph(op, "body"), inner_graph(op, "cond")
    if body is None or condition is None:
        raise NotPartitioned(f"the functions of {op.name} have no graphs")
    changed = [n for n, (a, b) in enumerate(zip(body.inputs, body.outputs)) if not _is_same(a, b)]
    values = [outer.program.values[number] for number in inputs]
    carried = [*map(_without_counts, values)]
    for _ in range(_MOST_ROUNDS):
        given = [outer.add(_check(outer.program.values[n], value, op)) for n, value in zip(inputs, carried)]
        builder, outputs = outer.body(body, given, changed, in_order=False)
        after = [outer.program.values[number] for number in outputs]
        merged = [
            _merge(before, value) if n in changed else before
            for n, (before, value) in enumerate(zip(carried, after))
        ]
        if all(map(_is_settled, merged, carried)):
            break
        carried = merged
    else:
        raise NeedsCollective(op.name)
    labels = [value.labels for value in carried]
    builder.program.outputs = [builder.convert(n, label, op) for n, label in zip(outputs, labels)]
    again, (goes_on,) = outer.body(condition, given, changed, in_order=False)
    again.program.outputs = [again.whole(goes_on, op)]
    given = [outer.convert(number, label, op) for number, label in zip(inputs, labels)]
    bodies = {op.get_attr("body").name: builder.program, op.get_attr("cond").name: again.program}
    values = [value.forget_numbers() if n in changed else value for n, value in enumerate(carried)]
    return _add(outer, op, given, values, bodies)


def _is_settled(value: Value, before: Value) -> bool:
    """Return whether an iteration has changed nothing that is known of a loop variable."""
    known = (value.labels, value.shape) == (before.labels, before.shape)
    return known and (value.elements is None) == (before.elements is None)


def _check(have: Value, value: Value, op: tf.Operation) -> Value:
    """Return a loop variable, if making it needs no collective; for a trial of the body."""
    if any(map(needs_collective, have.labels, value.labels)):
        raise NeedsCollective(op.name)
    return dataclasses.replace(value)


def _is_same(given: Any, returned: Any) -> bool:
    return returned is given or (returned.op.type == "Identity" and returned.op.inputs[0] is given)


def _without_counts(value: Value) -> Value:
    return dataclasses.replace(value, labels=with_label(value.labels, 0, value.label._replace(counts=None)))


def _merge(before: Value, after: Value) -> Value:
    """Return a value that stands for two: of a loop variable before and after an iteration, or of two branches."""
    pairs = zip(before.labels, after.labels)
    labels = tuple(_merge_labels(one, other._replace(counts=None), before) for one, other in pairs)
    if before.label == EMPTY:
        return dataclasses.replace(before, labels=labels, shape=after.shape, elements=after.elements)
    if after.label == EMPTY:
        return before
    alike = before.elements is not None and np.array_equal(before.elements, after.elements)  # type: ignore[arg-type]
    shape = merge_shapes(before.shape, after.shape)
    merged = dataclasses.replace(
        before, labels=labels, shape=shape, elements=before.elements if alike else None
    )
    if not has_parts(labels[0], merged, BATCH):
        raise NeedsCollective("a loop or a branch")
    return merged


def _merge_labels(before: Label, after: Label, value: Value) -> Label:
    if before == after or after == EMPTY:
        return before
    if before == EMPTY:
        return after
    pair = {before, after} - {REPLICATED}
    if len(pair) == 1 and value.dtype != tf.variant:
        (other,) = pair
        if other == PARTIAL_SUM or (is_sharded(other) and not other.chosen):
            return other
    raise NeedsCollective("a loop or a branch")
