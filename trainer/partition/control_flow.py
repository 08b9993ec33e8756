"""Branches and loops: collectives are not supported in their bodies, so inputs are converted before them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_graphs.named_calls import CALLS
from ...compat.tensorflow_graphs.one_device import inner_graph, subgraphs
from .labels import EMPTY, PARTIAL_SUM, REPLICATED, Label, needs_collective
from .operations import row_of
from .program import BATCH, LOOPS, Copy, NeedsCollective, NotPartitioned, Program, Value, has_parts
from .sizes.size_arrays import merge_shapes
from .values import Values

_MOST_ROUNDS = 6


Body = Callable[..., tuple[Values, list[int]]]
"""Partitions a function for inputs like these; constants of the `changed` inputs do not hold in it."""


def add_with_bodies(outer: Values, op: tf.Operation, inputs: list[int], body: Body) -> list[int]:
    """Add a branch, a loop or a call; return the numbers of its outputs.

    Bodies that need a collective get whole inputs.
    """
    add = _add_loop if op.type in LOOPS else _add_branch
    # A body is the same for all parts of a model.
    inputs = [outer.convert(number, [None, *outer.replicated_labels[1:]], op) for number in inputs]
    nodes, made = len(outer.program.nodes), dict(outer.made)
    if op.name not in outer.whole_ops:
        try:
            return add(outer, op, inputs, body)
        except NeedsCollective:
            del outer.program.nodes[nodes:]
            outer.made = made
    whole = [outer.whole(number, op) for number in inputs]
    before, outer.replicated = outer.replicated, True
    try:
        return add(outer, op, whole, body)
    except NeedsCollective as error:
        if outer.inside:
            raise
        raise NotPartitioned(
            f"{error} needs a sum over replicas, which a branch or a loop cannot compute"
        ) from None
    finally:
        outer.replicated = before


def _add(
    outer: Values, op: tf.Operation, inputs: list[int], values: list[Value], bodies: dict[str, Program]
) -> list[int]:
    if any(value.label.is_not_gathered for value in values):
        raise NeedsCollective(op.name)
    outputs = [outer.add(value) for value in values]
    labels = [value.labels for value in values]
    outer.program.nodes.append(Copy(inputs, outputs, op, labels, bodies))
    return outputs


def _add_branch(outer: Values, op: tf.Operation, inputs: list[int], body: Body) -> list[int]:
    """Add a branch, or a call of a function that XLA compiles; return the numbers of its outputs."""
    calls = op.type in CALLS  # XLA ignores seeds
    which, given = ([], inputs) if calls else ([outer.whole(inputs[0], op)], inputs[1:])
    found = [(name, *body(graph, given, in_order=not calls)) for name, graph in subgraphs(op)]
    if not found:
        raise NotPartitioned(f"the functions of {op.name} have no graphs")
    values = []
    for numbers in zip(*(outputs for _, _, outputs in found)):
        value = functools.reduce(_merge, (outer.program.values[n] for n in numbers))
        values.append(dataclasses.replace(value) if calls else Value(value.dtype, value.shape, value.labels))
    for _, builder, outputs in found:
        wanted = zip(outputs, values)
        builder.program.outputs = [builder.convert(n, value.labels, op) for n, value in wanted]
    bodies = {name: builder.program for name, builder, _ in found}
    return _add(outer, op, [*which, *given], values, bodies)


def _add_loop(outer: Values, op: tf.Operation, inputs: list[int], body: Body) -> list[int]:
    """Add a loop; return the numbers of its outputs."""
    turn, condition = inner_graph(op, "body"), inner_graph(op, "cond")
    if turn is None or condition is None:
        raise NotPartitioned(f"the functions of {op.name} have no graphs")
    changed = [n for n, (a, b) in enumerate(zip(turn.inputs, turn.outputs)) if not _is_same(a, b)]
    carried = [outer.program.values[number] for number in inputs]
    for _ in range(_MOST_ROUNDS):
        given = [outer.add(_check(outer.program.values[n], value, op)) for n, value in zip(inputs, carried)]
        builder, outputs = body(turn, given, changed, in_order=False)
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
    again, (goes_on,) = body(condition, given, changed, in_order=False)
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
    return returned is given or (row_of(returned.op).copies and returned.op.inputs[0] is given)


def _merge(before: Value, after: Value) -> Value:
    """Return a value that stands for two: of a loop variable before and after an iteration, or of two branches."""
    pairs = zip(before.labels, after.labels)
    labels = tuple(_merge_labels(one, other, before) for one, other in pairs)
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
        if other == PARTIAL_SUM or (other.is_sharded and not other.chosen):
            return other
    raise NeedsCollective("a loop or a branch")
