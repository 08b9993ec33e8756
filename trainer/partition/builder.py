"""Builds a program: walks the graph of the traced step, labels each value, and adds conversions."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.made_operations import stands_for
from ...compat.tensorflow_graphs.one_device import find_called_graph, inner_graph, subgraphs
from . import control_flow
from .labels import PARTIAL_SUM, REPLICATED, STATISTIC, Label, are_together, is_sharded, is_stored
from .operation_labels import READS, Ruling, describe_effects, has_effects, labels_of, settle_label
from .program import (
    BRANCHES,
    LOOPS,
    Apply,
    Copy,
    NeedsCollective,
    NotPartitioned,
    Program,
    Value,
    has_parts,
)
from .rules import View
from .rules.lists import describe_list
from .rules.rewritten import rewritten
from .sizes.extents import find_shapes
from .sizes.intervals import ANY, find_interval
from .sizes.size_arrays import extents_of
from .sizes.size_values import find_sums, find_value
from .values import MAKES_PARTS, SLICES, WHOLE, Values

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
IGNORED = ("NoOp", "Placeholder")
_COPIES = ("Identity", "StopGradient")
APPLY = "call of an optimizer"
"""What an `IdentityN` stands for."""


class Builder(Values):
    """Builds one program."""

    def walk(self, graph: Any, inputs: Sequence[int]) -> list[int]:
        """Add the operations of a graph, called with these values; return the numbers of its outputs."""
        # By name, since an operation that a second tape has extended has other tensor objects.
        known = {tensor.name: number for tensor, number in zip(graph.inputs, inputs)}
        done: set[str] = set()

        def visit(op: tf.Operation) -> None:
            if op.name in done:
                return
            done.add(op.name)
            for tensor in op.inputs:  # loops get lists for their backward pass after their creation
                if tensor.name not in known:
                    visit(tensor.op)
            self._operation(op, known)

        needed = find_needed_operations(graph)
        for op in graph.get_operations():
            if op.name in needed:
                visit(op)
        return [known[tensor.name] for tensor in graph.outputs]

    def _operation(self, op: tf.Operation, known: dict[str, int]) -> None:
        if op.type in IGNORED:
            return
        call, inputs = stands_for(op, APPLY), [known[tensor.name] for tensor in op.inputs]
        if call is None and op.type not in CALLS:
            inputs = [self.gather(number, op) for number in inputs]
        if call is not None:
            self._apply(op, inputs, call)
            outputs = inputs
        elif op.type in CALLS and "_XlaMustCompile" not in op.node_def.attr:
            graph = inner_graph(op, "f")
            if graph is None:
                raise NotPartitioned(f"the function that {op.name} calls has no graph")
            outputs = self._inline(op, graph, inputs)
        elif (graph := find_called_graph(op)) is not None:
            outputs = self._inline(op, graph, inputs)
        elif op.type in (*LOOPS, *BRANCHES, *CALLS):
            work = control_flow.loop if op.type in LOOPS else control_flow.branch
            work = control_flow.call if op.type in CALLS else work
            outputs = control_flow.without_collectives(self, op, inputs, work)
        else:
            outputs = self._find_unchanged(op, inputs) or self._rewritten(op, inputs)
            outputs = outputs or self._apply_rules(op, inputs, known)
        for tensor, number in zip(op.outputs, outputs):
            known[tensor.name] = number
            if tensor.dtype == tf.variant:
                self.producers.setdefault(number, op.name)

    def _outputs(self, op: tf.Operation, inputs: Sequence[int]) -> list[int]:
        given = [self.program.values[number] for number in inputs]
        shapes = find_shapes(op, given)
        outputs = []
        for number, (tensor, shape) in enumerate(zip(op.outputs, shapes)):
            if tensor.dtype == tf.variant:
                outputs.append(self.add(describe_list(op, given, self.replicated_labels)))
                continue
            value = given[0].elements if op.type == "TensorListPopBack" else find_value(op, number, given)
            bounds = find_interval(op, number, given, value)
            sums = find_sums(op, number, given) if value is None else ()
            outputs.append(
                self.add(
                    Value(tensor.dtype, shape, self.replicated_labels, value, interval=bounds, sums=sums)
                )
            )
        return outputs

    def _find_unchanged(self, op: tf.Operation, inputs: list[int]) -> list[int]:
        """Return the input of a reshape to the shape that it has, or of a sum over no axes; backward passes have many."""
        values = [self.program.values[number] for number in inputs]
        if op.type == "Reshape":
            shape = values[0].shape
            same = shape is not None and None not in shape and shape == extents_of(values[1].constant)
            if same:
                op.inputs[0].set_shape(op.outputs[0].shape)
        else:
            axes = values[1].constant if op.type == "Sum" else None
            same = axes is not None and not axes.size
        return inputs[:1] if same and id(op.inputs[0]) not in self.states else []

    def _rewritten(self, op: tf.Operation, inputs: list[int]) -> list[int]:
        if self.replicated or self.inside or self.is_local(op):
            return []
        graph = rewritten(op, [self.program.values[number] for number in inputs])
        return [] if graph is None else self._inline(op, graph, inputs)

    def _inline(self, op: tf.Operation, graph: Any, inputs: list[int]) -> list[int]:
        """Return the outputs of an operation that stands for those of a graph."""
        before, self.origin = self.origin, self.origin or op
        try:
            return self.walk(graph, inputs)
        finally:
            self.origin = before

    def _apply_rules(self, op: tf.Operation, inputs: list[int], known: Mapping[str, int]) -> list[int]:
        if self.states and not self.is_local(op):
            inputs = [self.read(tensor, number, op) for tensor, number in zip(op.inputs, inputs)]
        inputs = [self.add_up(number, op) for number in inputs]
        outputs = self._outputs(op, inputs)
        values = self.program.values
        if self.inside and has_effects(op):
            raise NotPartitioned(describe_effects(op, " in a branch or a loop"))
        rulings = self._find_rulings(op, inputs, outputs, known)
        wants, made = ([*zip(*each)] for each in zip(*rulings))
        given = [self.convert(number, want, op) for number, want in zip(inputs, wants)]
        of_batch: list[Label] = rulings[0][1]
        if self.inside and any(label.counts for label in of_batch):
            raise NeedsCollective(op.name)
        own_seed = op.op_def.is_stateful and any(map(is_sharded, of_batch))
        copy = Copy(given, outputs, op, made, own_seed=own_seed, origin=self.origin)
        copy.of_samples = any(is_sharded(label) or label.kind == "sizes" for label in map(self.label, given))
        self.program.nodes.append(copy)
        for number, labels in zip(outputs, made):
            values[number].labels = tuple(map(settle_label, labels))
        if op.type in MAKES_PARTS and len(self.program.mesh) > 1:
            self.makers[outputs[0]] = copy
        free = all(
            (number in self.again and values[number].free)
            or (want is not None and want.kind in ("replicated", "sizes"))
            for number, want in zip(inputs, rulings[0][0])
        )
        if free and len(made) == 1 and is_sharded(of_batch[0]) and not op.op_def.is_stateful:
            along_others = [self.convert(n, [None, *want[1:]], op) for n, want in zip(inputs, wants)]
            self.again[outputs[0]] = dataclasses.replace(copy, inputs=along_others)
            values[outputs[0]].free = True
        elif op.type in _COPIES and of_batch == [
            PARTIAL_SUM
        ]:  # several reads of a variable are summed together
            self.again[outputs[0]] = copy
        shape = values[inputs[0]].shape if inputs else None
        if (
            op.type == "Squeeze"
            and not op.get_attr("squeeze_dims")
            and shape
            and values[outputs[0]].shape is not None
        ):
            copy.attributes["squeeze_dims"] = [axis for axis, extent in enumerate(shape) if extent == 1]
        return outputs

    def _find_rulings(
        self, op: tf.Operation, inputs: list[int], outputs: list[int], known: Mapping[str, int]
    ) -> list[Ruling]:
        """Return the labels that an operation needs and makes along each axis of the mesh.

        Two of them never divide one axis of a tensor: along the second the operation gets whole inputs.
        """
        values, found, divided = self.program.values, list[Ruling](), set[tuple[int, int]]()
        given, shapes = [values[number] for number in inputs], [values[number].shape for number in outputs]
        value_of = lambda tensor: values[known[tensor.name]] if tensor.name in known else None  # noqa: E731
        for axis, mesh in enumerate(self.program.mesh):
            view = View(op, given, shapes, value_of, mesh, axis)
            wants, made = self._find_ruling(view, outputs)
            labels = [value.labels[axis] if want is None else want for value, want in zip(given, wants)]
            own = {(n, label.axis) for n, label in enumerate([*labels, *made]) if is_sharded(label)}
            found.append((wants, made) if divided.isdisjoint(own) else view.gather())
            divided |= own if divided.isdisjoint(own) else set()
        return found

    def _find_ruling(self, view: View, outputs: list[int]) -> Ruling:
        """Return the labels that an operation needs and makes along the view's axis of the mesh."""
        op, axis = view.op, view.number
        if view.labels and is_stored(view.labels[0]) and axis == 0 and op.type not in READS:
            return [None], [view.labels[0]]
        # Bodies of branches and loops are the same for all parts of a model.
        replicated = self.replicated or op.name in self.whole_ops or (self.inside and axis > 0)
        wants, made = labels_of(op, view, replicated, not axis and self.is_local(op))
        values = (self.program.values[number] for number in outputs)
        fits = all(map(has_parts, made, values, [view.mesh] * len(made)))
        return (wants, made) if fits else view.gather()

    def _apply(self, op: tf.Operation, inputs: list[int], number: int) -> None:
        """Add a call of an optimizer, whose gradients are partial sums over the replicas, or parts of weights.

        What the step has assigned before follows them, whole or in parts.
        """
        if self.inside:
            raise NotPartitioned("an optimizer is called in a branch or a loop")
        rest, given = iter(inputs), list[int]()
        for wanted in self.gradients[number]:
            values = next(rest)
            if wanted is WHOLE:
                given.append(self.whole(values, op))
                continue
            if wanted is not SLICES:
                summand = wanted is None
                given.append(self._summand(values, op) if summand else self.convert(values, wanted, op))
                continue
            indices = next(rest)
            labels = self.label(values), self.label(indices)
            if not are_together(*labels) or labels[0].axis or labels[1].counts:
                indices = self.whole(indices, op)
                values = self._summand(values, op)
            along_others = [None, *[PARTIAL_SUM] * (len(self.program.mesh) - 1)]
            given += [self.convert(values, along_others, op), self._along_model(indices, op)]
        given += [self.whole(value, op) for value in rest]
        self.program.nodes.append(Apply(given, [], number))

    def _summand(self, number: int, op: tf.Operation) -> int:
        if self.label(number) not in (PARTIAL_SUM, REPLICATED, STATISTIC):
            number = self.convert(number, [REPLICATED], op)
        return self.convert(number, [PARTIAL_SUM] * len(self.program.mesh), op)

    def _along_model(self, number: int, op: tf.Operation) -> int:
        """Return the number of a value that is the same on all replicas with the same samples."""
        return self.convert(number, [None, *self.replicated_labels[1:]], op)

    def body(
        self, graph: Any, inputs: Sequence[int], changed: Sequence[int] = ()
    ) -> tuple[Builder, list[int]]:
        """Partition a function for inputs like these; constants of the `changed` inputs do not hold in it."""
        if len(graph.inputs) != len(inputs):
            raise NotPartitioned(f"the function {graph.name} was changed after it was traced")
        values = self.program.values
        program = Program(values, one_size=self.program.one_size, mesh=self.program.mesh)
        builder = Builder(program, (), self.is_local, True, self.whole_ops, self.replicated)
        own: list[int] = []
        for number, given in enumerate(inputs):
            value = values[given]
            value = dataclasses.replace(value, constant=None, interval=ANY) if number in changed else value
            own.append(builder.add(dataclasses.replace(value)))
        builder.program.inputs = own
        return builder, builder.walk(graph, own)


_holding_calls: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def find_needed_operations(graph: Any) -> set[str]:
    """Return the names of the operations that affect the results or side effects of a graph."""
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
    """Return whether an operation stands for a call of an optimizer, or a function that it holds has one that does."""
    return stands_for(op, APPLY) is not None or any(_holds_call(graph) for _, graph in subgraphs(op))


def _holds_call(graph: Any) -> bool:
    if graph not in _holding_calls:
        _holding_calls[graph] = any(map(_calls_optimizer, graph.get_operations()))
    return _holding_calls[graph]
