"""Branches and loops: their bodies hold no collective, so what they read is converted before them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import tensorflow as tf

from ...compat.one_device import inner_graph, subgraphs
from .errors import NeedsCollective, NotPartitioned
from .labels import PARTIAL_SUM, REPLICATED, Label, is_sharded, needs_collective
from .program import Copy, Program, Value
from .rules.lists import EMPTY

_MOST_ROUNDS = 6


class Builder(Protocol):
    """What is asked of `builder.Builder`."""

    program: Program
    made: dict[tuple[int, Label], int]
    whole_ops: Collection[str]
    replicated: bool

    def add(self, value: Value) -> int:
        """The number of a new value."""
        ...

    def label(self, number: int) -> Label:
        """Of a value."""
        ...

    def converted(self, number: int, want: Label | None, cause: tf.Operation | None) -> int:
        """The number of a value with the label that is wanted."""
        ...

    def body(self, graph: Any, inputs: Sequence[int], changed: Sequence[int] = ()) -> tuple[Any, list[int]]:
        """Partitions a function with inputs like these."""
        ...


def without_collectives(
    outer: Builder,
    op: tf.Operation,
    inputs: list[int],
    work: Callable[[Builder, tf.Operation, list[int]], list[int]],
) -> list[int]:
    """Partitions the bodies of a branch or a loop; where they need a collective, what they read is whole."""
    for place, number in enumerate(inputs):
        if outer.label(number).counts:
            inputs[place] = outer.converted(number, outer.label(number)._replace(counts=False), op)
    nodes, made = len(outer.program.nodes), dict(outer.made)
    if op.name not in outer.whole_ops:
        try:
            return work(outer, op, inputs)
        except NeedsCollective:
            del outer.program.nodes[nodes:]
            outer.made = made
    whole = [outer.converted(number, REPLICATED, op) for number in inputs]
    before, outer.replicated = outer.replicated, True
    try:
        return work(outer, op, whole)
    finally:
        outer.replicated = before


def branch(outer: Builder, op: tf.Operation, inputs: list[int]) -> list[int]:
    """Adds a branch; returns the numbers of its outputs."""
    which = outer.converted(inputs[0], REPLICATED, op)
    found = [(name, *outer.body(graph, inputs[1:])) for name, graph in subgraphs(op)]
    labels = [
        _of_branches({builder.label(outputs[place]) for _, builder, outputs in found}, op)
        for place in range(len(op.outputs))
    ]
    for _, builder, outputs in found:
        builder.program.outputs = [builder.converted(n, label, op) for n, label in zip(outputs, labels)]
    copy = Copy(op, [which, *inputs[1:]], [], labels, list(op.control_inputs))
    copy.bodies = {name: builder.program for name, builder, _ in found}
    first = found[0][1].program
    copy.outputs = [
        outer.add(Value(tensor.dtype, first.values[number].shapes, label))
        for tensor, number, label in zip(op.outputs, first.outputs, labels)
    ]
    outer.program.nodes.append(copy)
    return copy.outputs


def loop(outer: Builder, op: tf.Operation, inputs: list[int]) -> list[int]:
    """Adds a loop; returns the numbers of its outputs."""
    body, condition = inner_graph(op, "body"), inner_graph(op, "cond")
    if body is None or condition is None:
        raise NotPartitioned(f"the functions of {op.name} have no graphs")
    changed = [n for n, (a, b) in enumerate(zip(body.inputs, body.outputs)) if not _is_same(a, b)]
    labels = [outer.label(number)._replace(counts=False) for number in inputs]
    for _ in range(_MOST_ROUNDS):
        given = [_like(outer, number, label, op) for number, label in zip(inputs, labels)]
        builder, outputs = outer.body(body, given, changed)
        merged = [
            _merged(label, builder.label(number), outer.program.values[given[place]])
            for place, (label, number) in enumerate(zip(labels, outputs))
        ]
        if merged == labels:
            break
        labels = merged
    else:
        raise NeedsCollective(op.name)
    builder.program.outputs = [builder.converted(n, label, op) for n, label in zip(outputs, labels)]
    again, (goes_on,) = outer.body(condition, given, changed)
    again.program.outputs = [again.converted(goes_on, REPLICATED, op)]
    given = [outer.converted(number, label, op) for number, label in zip(inputs, labels)]
    copy = Copy(op, given, [], labels, list(op.control_inputs))
    copy.bodies = {
        op.get_attr("body").name: builder.program,
        op.get_attr("cond").name: again.program,
    }
    values = outer.program.values
    copy.outputs = [
        outer.add(
            Value(tensor.dtype, values[number].shapes, label, None if n in changed else values[number].constant,
                  values[number].shared)
        )
        for n, (tensor, number, label) in enumerate(zip(op.outputs, given, labels))
    ]  # fmt: skip
    outer.program.nodes.append(copy)
    return copy.outputs


def _like(outer: Builder, number: int, label: Label, op: tf.Operation) -> int:
    """A value like another one with a label, for a body that is only tried."""
    if needs_collective(outer.label(number), label):
        raise NeedsCollective(op.name)
    value = outer.program.values[number]
    return outer.add(Value(value.dtype, value.shapes, label, value.constant, value.shared))


def _is_same(given: Any, returned: Any) -> bool:
    return returned is given or (returned.op.type == "Identity" and returned.op.inputs[0] is given)


def _of_branches(found: set[Label], op: tf.Operation) -> Label:
    """The label of an output that has these in the branches."""
    labels = {label._replace(counts=False) for label in found - {EMPTY}}
    others = labels - {REPLICATED}
    if len(others) > 1 or (
        len(labels) > 1 and not all(is_sharded(each) or each == PARTIAL_SUM for each in others)
    ):
        raise NeedsCollective(op.name)
    return next(iter(others or labels), EMPTY)


def _merged(before: Label, after: Label, value: Value) -> Label:
    """The label of what a loop carries, from that at its beginning and that after a round."""
    after = after._replace(counts=False)
    if before == after or after == EMPTY:
        return before
    if before == EMPTY:
        return after
    pair = {before, after} - {REPLICATED}
    if len(pair) == 1 and value.dtype != tf.variant:
        (other,) = pair
        if other == PARTIAL_SUM or (is_sharded(other) and not other.chosen):
            return other
    raise NeedsCollective("a loop")
