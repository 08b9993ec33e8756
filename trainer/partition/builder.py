"""Builds a program: walks the graph of the traced step, labels each value, and adds conversions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.made_operations import stands_for
from ...compat.tensorflow_graphs.named_calls import CALLS, kind_of
from ...compat.tensorflow_graphs.one_device import find_called_graph, graph_of, inner_graph
from . import control_flow
from .labels import PARTIAL_SUM, REPLICATED, STATISTIC, Label, are_together
from .needed_operations import APPLY, find_needed_operations
from .operation_labels import describe_effects, find_labels, has_effects, settle_label
from .operations import Call, Ruling, View, ask, find_values, row_of
from .program import BRANCHES, LOOPS, Apply, Copy, NotPartitioned, Program, has_parts
from .values import SLICES, WHOLE, Values

IGNORED = ("NoOp", "Placeholder")


class Builder(Values):
    """Builds one program. `check` runs after each operation."""

    check: Callable[[], None] = staticmethod(lambda: None)

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
            self._add_operation(op, known)
            self.check()

        needed = find_needed_operations(graph)
        for op in graph.get_operations():
            if op.name in needed:
                visit(op)
        return [known[tensor.name] for tensor in graph.outputs]

    def _add_operation(self, op: tf.Operation, known: dict[str, int]) -> None:
        if op.type in IGNORED:
            return
        call, inputs = stands_for(op, APPLY), [known[tensor.name] for tensor in op.inputs]
        kind = kind_of(op)
        if call is None and kind not in CALLS:
            inputs = [self.gather(number, op) for number in inputs]
        inlined = kind in CALLS and "_XlaMustCompile" not in op.node_def.attr
        graph = inner_graph(op, "f") if inlined else find_called_graph(op)
        if call is not None:
            self._add_apply(op, inputs, call)
            outputs = inputs
        elif inlined or graph is not None:
            outputs = self._inline(op, graph, inputs)
        elif kind in (*LOOPS, *BRANCHES, *CALLS):
            outputs = control_flow.add_with_bodies(self, op, inputs, self.body)
        else:
            outputs = self._simplify(op, inputs) or self._apply_rules(op, inputs, known)
        for tensor, number in zip(op.outputs, outputs):
            known[tensor.name] = number
            if tensor.dtype == tf.variant:
                self.producers.setdefault(number, op.name)

    def _call(self, op: tf.Operation, inputs: Sequence[int]) -> Call:
        return Call(op, [self.program.values[number] for number in inputs])

    def _simplify(self, op: tf.Operation, inputs: list[int]) -> list[int]:
        """Return the outputs of an operation that is its first input, or is rewritten with simpler ones; else none."""
        row, call = row_of(op), self._call(op, inputs)
        if ask(row.unchanged, call) and id(op.inputs[0]) not in self.states:
            return inputs[:1]
        as_it_is = self.replicated or self.inside or self.is_local(op)
        function = None if as_it_is else ask(row.rewrite, call)
        return [] if function is None else self._inline(op, graph_of(function, op.inputs), inputs)

    def _inline(self, op: tf.Operation, graph: Any, inputs: list[int]) -> list[int]:
        """Return the outputs of an operation that stands for those of a graph."""
        if graph is None:
            raise NotPartitioned(f"the function that {op.name} calls has no graph")
        before, self.origin = self.origin, self.origin or op
        try:
            return self.walk(graph, inputs)
        finally:
            self.origin = before

    def _apply_rules(self, op: tf.Operation, inputs: list[int], known: Mapping[str, int]) -> list[int]:
        if self.states and not self.is_local(op):
            inputs = [self.read(tensor, number, op) for tensor, number in zip(op.inputs, inputs)]
        self._note_bounds(op, inputs)
        inputs = [self.add_up(number, op) for number in inputs]
        row, made = row_of(op), find_values(self._call(op, inputs), self.replicated_labels)
        outputs = [self.add(value) for value in made]
        values = self.program.values
        if self.inside and has_effects(op):
            raise NotPartitioned(describe_effects(op, " in a branch or a loop"))
        rulings = self._find_rulings(op, inputs, outputs, known)
        wants, made = ([*zip(*each)] for each in zip(*rulings))
        given = [self.convert(number, want, op) for number, want in zip(inputs, wants)]
        of_batch: list[Label] = rulings[0][1]
        copy = Copy(given, outputs, op, made, origin=self.origin)
        self.program.nodes.append(copy)
        for number, labels in zip(outputs, made):
            values[number].labels = tuple(map(settle_label, labels))
        if row.part is not None and len(self.program.mesh) > 1:
            self.makers[outputs[0]] = copy
        free = all(
            (number in self.again and values[number].free)
            or (want is not None and want.kind in ("replicated", "sizes"))
            for number, want in zip(inputs, rulings[0][0])
        )
        if free and len(made) == 1 and of_batch[0].is_sharded and not op.op_def.is_stateful:
            along_others = [self.convert(n, [None, *want[1:]], op) for n, want in zip(inputs, wants)]
            self.again[outputs[0]] = dataclasses.replace(copy, inputs=along_others)
            values[outputs[0]].free = True
        elif row.keeps_stored and of_batch == [PARTIAL_SUM]:  # reads of a variable are summed together
            self.again[outputs[0]] = copy
        self.again.update({n: copy for n, label in zip(outputs, of_batch) if label.is_not_gathered})
        return outputs

    def _note_bounds(self, op: tf.Operation, inputs: Sequence[int]) -> None:
        """Note the bounds of inputs outside of which an operation is an error."""
        call = self._call(op, inputs)
        for number, (low, high) in (ask(row_of(op).asserts, call) or {}).items():
            least, most = call.values[number].interval
            if least < low or high < most:
                call.values[number].interval = max(low, least), min(high, most)

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
            own = {(n, label.axis) for n, label in enumerate([*labels, *made]) if label.is_sharded}
            found.append((wants, made) if divided.isdisjoint(own) else view.gather())
            divided |= own if divided.isdisjoint(own) else set()
        return found

    def _find_ruling(self, view: View, outputs: list[int]) -> Ruling:
        """Return the labels that an operation needs and makes along the view's axis of the mesh."""
        op, axis = view.op, view.number
        if view.labels and view.labels[0].is_stored and axis == 0 and not row_of(op).reads:
            return [None], [view.labels[0]]
        # Bodies of branches and loops are the same for all parts of a model.
        replicated = self.replicated or op.name in self.whole_ops or (self.inside and axis > 0)
        is_local = not axis and self.is_local(op)
        wants, made = find_labels(view, replicated, is_local, self.inside, self.in_order)
        values = (self.program.values[number] for number in outputs)
        fits = all(map(has_parts, made, values, [view.mesh] * len(made)))
        return (wants, made) if fits else view.gather()

    def _add_apply(self, op: tf.Operation, inputs: list[int], number: int) -> None:
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
                given.append(self._make_summand(values, op) if summand else self.convert(values, wanted, op))
                continue
            indices = next(rest)
            labels = self.label(values), self.label(indices)
            if not are_together(*labels) or labels[0].axis:
                indices = self.whole(indices, op)
                values = self._make_summand(values, op)
            along_others = [None, *[PARTIAL_SUM] * (len(self.program.mesh) - 1)]
            same_along_model = [None, *self.replicated_labels[1:]]
            given += [self.convert(values, along_others, op), self.convert(indices, same_along_model, op)]
        given += [self.whole(value, op) for value in rest]
        self.program.nodes.append(Apply(given, [], number))

    def _make_summand(self, number: int, op: tf.Operation) -> int:
        if self.label(number) not in (PARTIAL_SUM, REPLICATED, STATISTIC):
            number = self.convert(number, [REPLICATED], op)
        return self.convert(number, [PARTIAL_SUM] * len(self.program.mesh), op)

    def body(
        self, graph: Any, inputs: Sequence[int], changed: Sequence[int] = (), in_order: bool = True
    ) -> tuple[Values, list[int]]:
        """Partition a function for inputs like these; constants of the `changed` inputs do not hold in it."""
        if len(graph.inputs) != len(inputs):
            raise NotPartitioned(f"the function {graph.name} was changed after it was traced")
        values = self.program.values
        program = Program(values, one_size=self.program.one_size, mesh=self.program.mesh)
        builder = Builder(
            program, (), self.is_local, True, in_order and self.in_order, self.whole_ops, self.replicated
        )
        for number, value in enumerate([values[given] for given in inputs]):
            known = value.forget_numbers() if number in changed else dataclasses.replace(value)
            program.inputs.append(builder.add(known))
        return builder, builder.walk(graph, program.inputs)
