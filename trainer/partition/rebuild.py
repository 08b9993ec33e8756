"""Copies a partitioned step into the graph of one replica, stage by stage; between stages replicas exchange tensors."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.equal_operations import reuse_equal_operations
from ...compat.tensorflow_graphs.graphs import graph_function
from ...compat.tensorflow_graphs.one_device import copy_into_graph, new_function, on_replica, subgraphs
from .conversions import Replica, convert_locally, count_in_batch, scale_numbers, where
from .exchange import Exchange, exchange
from .labels import PARTIAL_SUM, REPLICATED
from .operation_labels import find_shared_draw
from .operations import ReplicaCall, row_of
from .program import BRANCHES, LOOPS, Apply, Convert, Copy, Extents, MeshAxis, Node, Program, Value
from .sizes.size import Size
from .sizes.size_arrays import at


def rebuild_step(
    program: Program,
    inputs: Sequence[tf.Tensor],
    replica: Replica,
    apply: Callable[[int, list[tf.Tensor]], None] | None = None,
    compiles: bool = False,
    others: Sequence[Replica] = (),
) -> Exchange:
    """Copy a step into the current graph for one replica, with `inputs` as its part of the batch; return the outputs.

    `apply` is called with the number of an optimizer's call and this replica's parts of the gradients. With `compiles` XLA
    compiles the operations between collectives and calls of optimizers. `others` are this replica's parts along the other
    axes of the mesh.
    """
    places = [replica, *others]
    copier = _Copier(program, places, apply)
    values = copier.values
    values.update(zip(program.inputs, inputs))
    values.update((number, count_in_batch(inputs[number], replica)) for number in program.places)
    values.update((number, on_replica(outer, replica.copy)) for outer, number in program.captures)
    for nodes, exchanges in program.stages():
        copier.add_all(nodes, compiles)
        if exchanges:
            wanted = [
                (copier.find_sent(e), *program.labels_around(e), e.axis, program.local_shape(e.target))
                for e in exchanges
            ]
            for node, tensor in zip(exchanges, (yield from exchange(wanted, places))):
                whole = all(label == REPLICATED for label in program.values[node.target].labels)
                if whole and tensor.dtype != tf.variant:
                    _refine_shape(tensor, find_whole_shape(program, node.target, replica.global_samples))
                values[node.target] = tensor
    return [copier.value(number) for number in program.outputs]


def find_whole_shape(program: Program, number: int, samples: Any) -> list[int | None] | None:
    """Return the static shape of a whole value for a global batch."""
    shape = program.values[number].shape
    return (
        None if shape is None or not program.one_size or not isinstance(samples, int) else at(shape, samples)
    )


def _is_for_xla(node: Node) -> bool:
    if isinstance(node, Convert | Extents):
        return True
    if not isinstance(node, Copy):
        return False
    acts = not (row_of(node.op).of_sizes or node.op.type in (*LOOPS, *BRANCHES))  # no body has side effects
    if node.op.op_def.is_stateful and acts:
        return False
    around = [t.op for t in node.op.inputs] + [op for t in node.op.outputs for op in t.consumers()]
    if any(map(find_shared_draw, node.bodies.values())):
        return False  # XLA ignores the seed that makes their numbers the same on every replica
    if node.op.type in BRANCHES and any(op.type in BRANCHES for op in around):
        return False  # the intermediates of a branch that is not taken are empty, and XLA needs their shapes
    return all(tensor.dtype != tf.string for tensor in [*node.op.inputs, *node.op.outputs])


class _Copier:
    """Copies nodes; owns the resulting tensors."""

    def __init__(self, program: Program, places: Sequence[Replica], apply: Any) -> None:
        self.values: dict[int, Any] = {}
        self._program, self._places, self._apply = program, places, apply
        self._replica = places[0]
        self._copies: dict[int, tf.Operation] = {}
        self._shared: dict[Any, Any] = {}
        self._makers: dict[int, Node] = {}  # of sizes that were computed inside XLA functions

    def value(self, number: int) -> Any:
        """Return a value; a size from inside an XLA function is copied into the current graph once more."""
        if number not in self.values:
            self.add(self._makers[number])
        return self.values[number]

    def find_sent(self, node: Convert) -> Any:
        """Return the value that a conversion sends, when it has waited."""
        value = self.value(node.source)
        with tf.control_dependencies(self._find_awaited(node)):
            return tf.identity(value) if node.after else value

    def _find_awaited(self, node: Node) -> list[tf.Operation]:
        return [self.value(number).op for number in node.after]

    def add(self, node: Node) -> None:
        """Run a node that needs no communication."""
        labels = self._program.values
        for number in node.inputs:
            self.value(number)
        if isinstance(node, Extents):
            number, open_extent = node.outputs[0], node.numbers[node.axis] == -1
            held = 1 if open_extent else self._replica.held
            self.values[number] = scale_numbers(node.numbers, labels[number].dtype, node.axis, held, 1)
        elif isinstance(node, Apply):
            alive = self._replica.alive
            given = [(self.values[each], labels[each]) for each in node.inputs]
            masked = [where(alive, t) if v.label.is_sharded and v.dtype.is_floating else t for t, v in given]
            self._apply(node.number, masked)
        else:  # a tape in a custom optimizer distinguishes equal constants: only the step's own are shared
            with reuse_equal_operations(self._shared):
                if isinstance(node, Convert):
                    around, place = self._program.labels_around(node), self._places[node.axis]
                    self.values[node.target] = convert_locally(self.values[node.source], *around, place)
                elif isinstance(node, Copy):
                    self._copy(node)

    def add_all(self, nodes: Sequence[Node], compiles: bool) -> None:
        """Run the nodes of a stage in their order, XLA-compatible ones in compiled functions."""
        nodes = self._in_three_parts(nodes) if compiles else nodes
        for together, run in itertools.groupby(nodes, lambda node: compiles and _is_for_xla(node)):
            found = list(run)
            if not (together and self._add_compiled(found)):
                for node in found:
                    self.add(node)

    def _in_three_parts(self, nodes: Sequence[Node]) -> list[Node]:
        """Sort a stage's nodes: variable reads, nodes independent of updates, then updates and nodes that depend on them.

        XLA reads no variable of another device. A read stays behind an earlier write.
        """
        reads: list[Node] = []
        early: list[Node] = []
        late: list[Node] = []
        waits: set[int] = set()
        written = False
        for node in nodes:
            stateful = isinstance(node, Copy) and node.op.op_def.is_stateful
            is_read = isinstance(node, Copy) and row_of(node.op).reads
            if isinstance(node, Apply) or (late and stateful) or not waits.isdisjoint(node.inputs):
                late.append(node)
                waits.update(node.outputs)
            elif is_read and not written:
                reads.append(node)
            else:
                early.append(node)
                written = written or (stateful and not is_read)
        return reads + early + late

    def _add_compiled(self, nodes: list[Node]) -> bool:
        """Run nodes in a function that XLA compiles; false where its inputs or results are not supported by XLA.

        Sizes are not returned, because a host would wait for them. They are recreated where they are needed.
        """
        values = self._program.values
        own = {id(node) for node in nodes}
        makers = {number: node for node in nodes for number in node.outputs}
        others = (node for node in self._program.nodes if id(node) not in own)
        left = [number for node in others for number in node.inputs] + self._program.outputs
        needed: set[int] = set()
        while left:
            number = left.pop()
            if number in makers and number not in needed:
                needed.add(number)
                left += makers[number].inputs if self._is_size(number) else []
        made = [number for number in needed if not self._is_size(number)]
        given = {number for node in nodes for number in node.inputs} - set(makers)
        lists = any(values[number].dtype == tf.variant for number in given)
        if lists or any(values[n].dtype in (tf.string, tf.variant, tf.resource) for n in made):
            return False

        def compute() -> list[tf.Tensor]:
            for node in nodes:
                self.add(node)
            return [self.values[n] for n in made]

        outside = dict(self.values)
        found = graph_function(compute, jit_compile=True)()
        self._copies.clear()  # they are in the graph of the function, and the next nodes wait for all of it
        self.values.clear()
        self.values.update(outside | dict(zip(made, found)))
        self._makers |= makers
        return True

    def _is_size(self, number: int) -> bool:
        found = self._program.values[number].constant
        return found is not None and None not in found.ravel().tolist()

    def _copy(self, node: Copy) -> None:
        values = self._program.values
        if (fixed := self._program.find_fixed(node)) is not None:
            for number, value in zip(node.outputs, fixed):
                self.values[number] = tf.constant(value, values[number].dtype)
            return
        given = [self.values[number] for number in node.inputs]
        given += self._replica.unknown.values() if node.bodies else []
        functions = {name: self._function(name, body, given, node) for name, body in node.bodies.items()}
        controls = [self._copies[id(op)] for op in node.op.control_inputs if id(op) in self._copies]
        controls += self._find_awaited(node)
        seed = self._replica.replica_id if any(labels[0].is_sharded for labels in node.made) else 0
        known = [values[number] for number in node.inputs]
        of_samples = not node.bodies and any(value.label.kind in ("sharded", "sizes") for value in known)

        def make(inputs: list[Any], **attributes: Sequence[int]) -> list[Any]:
            copy = copy_into_graph(node.op, inputs, functions, controls, seed, attributes)
            self._copies.setdefault(id(node.op), copy)
            return copy.outputs

        rule = row_of(node.op).copy or (lambda call, given: call.make(given))
        copies = rule(ReplicaCall(node.op, known, node.made, self._places, make), given)
        for number, made, traced, tensor in zip(node.outputs, node.made, node.op.outputs, copies):
            label = values[number].label
            if not label.is_stored:
                _set_shape(tensor, traced, values[number], self._program.mesh)
            for have, want, place in zip(made, values[number].labels, self._places):
                tensor = convert_locally(tensor, have, want, place)
            if of_samples and label == PARTIAL_SUM:
                tensor = where(self._replica.alive, tensor)  # without a borrowed sample
            self.values[number] = tensor

    def _function(self, name: str, body: Program, given: Sequence[Any], node: Copy) -> str:
        source = dict(subgraphs(node.op))[name]
        count = len(self._replica.unknown)
        arguments = given[len(given) - len(body.inputs) - count :]
        hands_on = "body" in node.op.node_def.attr and name == node.op.get_attr("body").name

        def build(inputs: list[Any]) -> list[Any]:
            numbers = inputs[len(inputs) - count :] if count else []
            inside = dataclasses.replace(self._replica, **dict(zip(self._replica.unknown, numbers)))
            copier = _Copier(body, [inside, *self._places[1:]], None)
            copier.values.update(zip(body.inputs, inputs))
            for inner in body.nodes:
                copier.add(inner)
            return [copier.values[number] for number in body.outputs] + (numbers if hands_on else [])

        shapes = [_loop_shape(value, tensor) for value, tensor in zip(arguments, source.inputs)]
        return new_function(name + "_on_replica", source, build, shapes, arguments)


def _loop_shape(given: Any, traced: Any) -> Any:
    """Return the shape of a body's input: axes that the traced body leaves open stay open."""
    if given.dtype in (tf.resource, tf.variant) or given.shape.rank is None or traced.shape.rank is None:
        return traced.shape
    return [None if b is None else a for a, b in zip(given.shape.as_list(), traced.shape.as_list())]


def _set_shape(tensor: tf.Tensor, traced: tf.Tensor, value: Value, mesh: Sequence[MeshAxis]) -> None:
    """Repeat `set_shape` of the traced tensor, which is not an operation."""
    if traced.shape.rank is None or tensor.dtype in (tf.resource, tf.variant):
        return
    shape = traced.shape.as_list()
    shape = [  # the step may say what a length is
        None if isinstance(n, Size) and not n.is_of_lengths else extent
        for n, extent in zip(value.shape or shape, shape)
    ]
    for label, axis in zip(value.labels, mesh):
        if label.is_sharded:
            whole = shape[label.axis]
            shape[label.axis] = None if axis.parts is None or whole is None else whole // axis.parts
    _refine_shape(tensor, shape)


def _refine_shape(tensor: tf.Tensor, shape: list[int | None] | None) -> None:
    """Set a static shape, unless it contradicts TensorFlow's, which is wrong for some operations that broadcast."""
    if tensor.shape.is_compatible_with(shape):
        tensor.set_shape(shape)
