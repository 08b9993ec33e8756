"""Builds a program: walks the graph of the traced step, labels each value, and adds conversions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_graphs.one_device import called_graph, inner_graph, subgraphs
from . import control_flow
from .constants import constant, depends_on_sizes, holds_for_all_sizes, rounds_sizes
from .labels import PARTIAL_SUM, REPLICATED, STATISTIC, are_together, is_sharded
from .operation_labels import has_effects, labels_of, settled
from .program import (
    BRANCHES,
    LOOPS,
    PROBES,
    Apply,
    Copy,
    NeedsCollective,
    NotPartitioned,
    Program,
    Read,
    Shape,
    Value,
    shape_of,
)
from .rules import RULES, View
from .rules.lists import listed
from .rules.rewritten import rewritten
from .static_shapes import StaticShapes
from .values import Values

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
IGNORED = ("NoOp", "Placeholder")
APPLY = "unisono_apply_"
"""Name prefix of an operation that stands for a call of an optimizer; its number follows."""
READ = "unisono_read_"
"""Name prefix of a placeholder that stands for a sharded weight; the number of the read follows."""


class Builder(Values):
    """Builds one program."""

    def walk(self, graph: Any, inputs: Sequence[int]) -> list[int]:
        """Adds the operations of a graph, called with these values; returns the numbers of its outputs."""
        shapes = StaticShapes(graph, [self.program.values[number] for number in inputs])
        known = {id(tensor): number for tensor, number in zip(graph.inputs, inputs)}
        done: set[str] = set()

        def visit(op: tf.Operation) -> None:
            if op.name in done:
                return
            done.add(op.name)
            for tensor in op.inputs:  # loops get lists for their backward pass after their creation
                if id(tensor) not in known:
                    visit(tensor.op)
            self._operation(op, known, shapes)

        needed = needed_operations(graph)
        for op in graph.get_operations():
            if op.name in needed:
                visit(op)
        return [known[id(tensor)] for tensor in graph.outputs]

    def _operation(self, op: tf.Operation, known: dict[int, int], shapes: StaticShapes) -> None:
        name = op.name.rpartition("/")[2]
        if op.type == "Placeholder" and name.startswith(READ) and id(op.outputs[0]) not in known:
            known[id(op.outputs[0])] = self._read_weight(op)
        if op.type in IGNORED:
            return
        inputs = [known[id(tensor)] for tensor in op.inputs]
        if name.startswith(APPLY):
            self._apply(op, inputs)
            outputs = inputs
        elif op.type in CALLS and "_XlaMustCompile" not in op.node_def.attr:
            graph = inner_graph(op, "f")
            if graph is None:
                raise NotPartitioned(f"the function that {op.name} calls has no graph")
            outputs = self.walk(graph, inputs)
        elif (graph := called_graph(op)) is not None:
            outputs = self.walk(graph, inputs)
        elif op.type in (*LOOPS, *BRANCHES, *CALLS):
            work = control_flow.loop if op.type in LOOPS else control_flow.branch
            work = control_flow.call if op.type in CALLS else work
            outputs = control_flow.without_collectives(self, op, inputs, work)
            shapes.say(op, [self.program.values[number] for number in outputs])
        else:
            outputs = self._unchanged(op, inputs, shapes) or self._rewritten(op, inputs)
            outputs = outputs or self._ruled(op, inputs, shapes, known)
        for tensor, number in zip(op.outputs, outputs):
            known[id(tensor)] = number
            if tensor.dtype == tf.variant:
                self.producers.setdefault(number, op.name)

    def _output(self, op: tf.Operation, number: int, inputs: Sequence[int], shapes: StaticShapes) -> int:
        tensor = op.outputs[number]
        if tensor.dtype == tf.variant:
            return self.add(listed(op, [self.program.values[each] for each in inputs], shapes.of(tensor)))
        traced = shape_of(tensor.shape)
        static: list[Shape] = [
            None if shape is None else [b if a is None else a for a, b in zip(shape, traced or shape)]
            for shape in shapes.of(tensor)
        ]
        begin = self.program.values[inputs[1]].constant if op.type == "StridedSlice" else None
        if clamped := _clamped(op, begin, traced, static):
            static = [[None if axis in clamped else n for axis, n in enumerate(s or ())] for s in static]
            shapes.set(tensor, static)
        values = self.program.values
        given = [values[each].constant for each in inputs]
        both = constant(op, number, given, [values[each].shapes for each in inputs])
        if op.type == "TensorListPopBack":
            both = values[inputs[0]].elements
        if (
            depends_on_sizes(given) and not holds_for_all_sizes(op.type, given, self.program.one_size)
        ) or rounds_sizes(op):
            both = None
            shapes.set(tensor, shapes.of(tensor))
        both_shapes = (static[0] or traced, static[1] or traced)
        return self.add(Value(tensor.dtype, both_shapes, constant=both))

    def _unchanged(self, op: tf.Operation, inputs: list[int], shapes: StaticShapes) -> list[int]:
        """The input of a reshape to the shape that it has, or of a sum over no axes; backward passes have many."""
        values = [self.program.values[number] for number in inputs]
        if op.type == "Reshape":
            have = values[0].shapes
            same = [*have] == shapes.of(op.outputs[0]) and all(shape and None not in shape for shape in have)
            if same:
                op.inputs[0].set_shape(op.outputs[0].shape)
        else:
            same = op.type == "Sum" and values[1].constant is not None and not values[1].constant[0].size
        return inputs[:1] if same and id(op.inputs[0]) not in self.states else []

    def _rewritten(self, op: tf.Operation, inputs: list[int]) -> list[int]:
        if self.replicated or self.inside or self.is_local(op):
            return []
        graph = rewritten(op, [self.program.values[number] for number in inputs])
        return [] if graph is None else self.walk(graph, inputs)

    def _ruled(
        self, op: tf.Operation, inputs: list[int], shapes: StaticShapes, known: Mapping[int, int]
    ) -> list[int]:
        if self.states and not self.is_local(op):
            inputs = [self.read(tensor, number, op) for tensor, number in zip(op.inputs, inputs)]
        outputs = [self._output(op, number, inputs, shapes) for number in range(len(op.outputs))]
        values = self.program.values
        view = View(
            op,
            [values[number] for number in inputs],
            [values[number].shapes for number in outputs],
            lambda tensor: values[known[id(tensor)]] if id(tensor) in known else None,
        )
        if self.inside and has_effects(op):
            raise NotPartitioned(f"{op.type} ({op.name}) has effects in a branch or a loop")
        replicated = self.replicated or op.name in self.whole_ops
        wants, made = labels_of(op, view, replicated, self.is_local(op))
        given = [self.converted(number, want, op) for number, want in zip(inputs, wants)]
        if self.inside and any(label.counts for label in made):
            raise NeedsCollective(op.name)
        copy = Copy(given, outputs, op, made, own_seed=op.op_def.is_stateful and any(map(is_sharded, made)))
        copy.of_samples = any(is_sharded(label) or label.kind == "sizes" for label in map(self.label, given))
        self.program.nodes.append(copy)
        for number, label in zip(outputs, made):
            values[number].label = settled(label)
        free = all(
            number in self.again or (want is not None and want.kind in ("replicated", "sizes"))
            for number, want in zip(inputs, wants)
        )
        if free and len(made) == 1 and is_sharded(made[0]) and not op.op_def.is_stateful:
            self.again[outputs[0]] = dataclasses.replace(copy, inputs=inputs)
            values[outputs[0]].free = True
        shape = values[inputs[0]].shapes[0] if inputs else None
        if op.type == "Squeeze" and not op.get_attr("squeeze_dims") and shape is not None:
            copy.attributes["squeeze_dims"] = [axis for axis, extent in enumerate(shape) if extent == 1]
        return outputs

    def _apply(self, op: tf.Operation, inputs: list[int]) -> None:
        """The gradients for an optimizer are partial sums over the replicas."""
        if self.inside:
            raise NotPartitioned("an optimizer is called in a branch or a loop")
        number = _number_in(op, APPLY)
        rest, given = iter(inputs), list[int]()
        for is_slices in self.slices[number]:
            values = next(rest)
            if not is_slices:
                given.append(self._summand(values, op))
                continue
            indices = next(rest)
            labels = self.label(values), self.label(indices)
            if not are_together(*labels) or labels[0].axis or labels[1].counts:
                indices = self.converted(indices, REPLICATED, op)
                values = self._summand(values, op)
            given += [values, indices]
        given += [self.converted(value, REPLICATED, op) for value in rest]
        self.program.nodes.append(Apply(given, [], number))

    def _read_weight(self, op: tf.Operation) -> int:
        tensor = op.outputs[0]
        shape = shape_of(tensor.shape)
        target = self.add(Value(tensor.dtype, (shape, shape), REPLICATED))
        self.program.nodes.append(Read([], [target], _number_in(op, READ)))
        return target

    def _summand(self, number: int, op: tf.Operation) -> int:
        if self.label(number) not in (PARTIAL_SUM, REPLICATED, STATISTIC):
            number = self.converted(number, REPLICATED, op)
        return self.converted(number, PARTIAL_SUM, op)

    def body(
        self, graph: Any, inputs: Sequence[int], changed: Sequence[int] = ()
    ) -> tuple[Builder, list[int]]:
        """Partitions a function for inputs like these; constants of the `changed` inputs do not hold in it."""
        if len(graph.inputs) != len(inputs):
            raise NotPartitioned(f"the function {graph.name} was changed after it was traced")
        values = self.program.values
        program = Program(values, one_size=self.program.one_size)
        builder = Builder(program, (), self.is_local, True, self.whole_ops, self.replicated)
        own: list[int] = []
        for number, given in enumerate(inputs):
            value = values[given]
            constants = None if number in changed else value.constant
            own.append(builder.add(dataclasses.replace(value, constant=constants)))
        builder.program.inputs = own
        return builder, builder.walk(graph, own)


def _number_in(op: tf.Operation, prefix: str) -> int:
    return int(op.name.rpartition("/")[2].removeprefix(prefix).partition("_")[0])


_CLAMPING = ("StridedSlice", "MatrixDiagPartV3", "Qr")
"""The operations with a rule whose results have the smaller of a size of the batch and another number."""


def _clamped(op: tf.Operation, begin: Any, traced: Shape, static: Sequence[Shape]) -> list[int]:
    """The axes that may be shorter for a small batch: `x[:3]` of two samples has two, `x[::2]` of five has three.

    The first and the last sample, `x[:1]` and `x[-1:]`, are in every batch. An operation without a rule may do the same.
    """
    if (op.type in RULES and op.type not in _CLAMPING) or traced is None or None in static:
        return []
    is_end = begin is not None and bool(np.all(np.isin(begin[0], (0, -1))))

    def certain(one: int | None, other: int | None) -> bool:
        if one is None or other is None or one == other:
            return one is None or other is None or one == 0 or (one == 1 and is_end)
        return (other - one) % (PROBES[1] - PROBES[0]) == 0

    extents = zip(traced, *(shape or () for shape in static))
    return [axis for axis, (size, *each) in enumerate(extents) if size is None and not certain(*each)]


def needed_operations(graph: Any) -> set[str]:
    """The names of the operations that affect the results or side effects of a graph."""
    found: set[str] = set()
    ahead = [tensor.op for tensor in graph.outputs]
    ahead += [op for op in graph.get_operations() if op.op_def.is_stateful or _calls_optimizer(op)]
    while ahead:
        op = ahead.pop()
        if op.name not in found:
            found.add(op.name)
            ahead += [tensor.op for tensor in op.inputs]
            ahead += op.control_inputs
    return found


def _calls_optimizer(op: tf.Operation) -> bool:
    """Whether an operation stands for a call of an optimizer, or a function that it holds has one that does."""
    inner = (each for _, graph in subgraphs(op) for each in graph.get_operations())
    return APPLY in op.name or any(map(_calls_optimizer, inner))
