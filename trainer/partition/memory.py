"""What a program keeps in memory: whole weights, activations and gradients, each for a short time.

Nodes are made again where the backward pass reads their results, and wait (`Node.after`) for what comes before them.
"""

import dataclasses
import math
from collections.abc import Collection, Sequence

import tensorflow as tf

from ...compat.tensorflow_graphs.edges import holds_numbers
from ...compat.tensorflow_graphs.gradients import is_of_a_gradient
from ...distribute.sharding.collectives import pack_neighbours
from .labels import PARTIAL_SUM, REPLICATED
from .program import Apply, Convert, Copy, Node, Program

_WHOLE = 2
"""Weights that are whole at a time."""


def save_memory(program: Program, calls: Sequence[Collection[str]], most: int) -> None:
    """Gather weights for the backward pass again, and rematerialize what is read of calls, the names of their operations.

    The backward pass is kept from running far ahead of the sums of its gradients, which are sent in packs of `most` bytes;
    0: it is not.
    """
    _send_early(program)
    _Again(program, calls).run()
    _let_gathers_wait(program)
    if most:
        _let_gradients_wait(program, most)
        _let_sums_share_packs(program, most)
    program.drop_unread()


def _is_gather(program: Program, node: Node) -> bool:
    return isinstance(node, Convert) and not node.axis and program.values[node.source].labels[0].is_stored


def _is_scatter(program: Program, node: Node) -> bool:
    if not isinstance(node, Convert) or node.axis:
        return False
    have, want = program.labels_around(node)
    return have == PARTIAL_SUM and want.is_stored


def _reads_numbers(node: Node) -> bool:
    """Return whether a node computes numbers in the backward pass; one that reads a shape does so in the forward pass."""
    if not isinstance(node, Copy):
        return False
    return is_of_a_gradient(node.origin or node.op) and any(map(holds_numbers, node.op.outputs))


def _send_early(program: Program) -> None:
    """Move each reduce-scatter of a gradient to where the gradient is made."""
    makers = {number: node for node in program.nodes for number in node.outputs}
    behind: dict[int, list[Node]] = {}
    rest: list[Node] = []
    for node in program.nodes:
        maker = makers.get(node.inputs[0]) if _is_scatter(program, node) else None
        (rest if maker is None else behind.setdefault(id(maker), [])).append(node)
    program.nodes = [each for node in rest for each in (node, *behind.get(id(node), ()))]


def _find_of_weights(program: Program) -> set[int]:
    """Return the values that depend on gathered weights alone."""
    found: set[int] = set()
    for node in program.nodes:
        alone = isinstance(node, Copy) and not (node.op.op_def.is_stateful or node.bodies)
        alone = alone and all(n in found or program.values[n].constant is not None for n in node.inputs)
        if _is_gather(program, node) or (alone and not found.isdisjoint(node.inputs)):
            found.update(node.outputs)
    return found


class _Again:
    """Makes results of the forward pass again for the backward pass."""

    def __init__(self, program: Program, calls: Sequence[Collection[str]]) -> None:
        self._program, self._nodes = program, list[Node]()
        self._of_weights = _find_of_weights(program)
        self._makers = {number: node for node in program.nodes for number in node.outputs}
        self._at = {number: at for at, node in enumerate(program.nodes) for number in node.outputs}
        self._call_of = {name: n for n, names in enumerate(calls) for name in names}
        self._ends: dict[int, int] = {}
        for at, node in enumerate(program.nodes):
            if (call := self._call(node)) is not None:
                self._ends[call] = at
        self._arrived: dict[int, tuple[int, ...]] = {}
        self._twins: dict[int, int] = {}
        self._whole: list[int] = []

    def run(self) -> None:
        """Replace the nodes of the program."""
        for node in self._program.nodes:
            if _reads_numbers(node):
                for number in node.inputs:
                    self._arrive(number, node)
                node.inputs = [self._again(number) for number in node.inputs]
            self._add(node)
        self._program.nodes = self._nodes

    def _add(self, node: Node) -> None:
        self._nodes.append(node)
        if _is_gather(self._program, node):
            self._whole = [*self._whole, *node.outputs][-_WHOLE:]

    def _call(self, node: Node | None) -> int | None:
        """Return the number of the call in which a node is made that can be made again."""
        if not isinstance(node, Copy) or node.op.op_def.is_stateful or node.bodies:
            return None
        return None if self._program.find_fixed(node) else self._call_of.get((node.origin or node.op).name)

    def _arrive(self, number: int, node: Node) -> None:
        """Note the gradients that arrive first at a call: what is made again waits for them."""
        call = self._call(self._makers.get(number))
        if call is not None and call not in self._arrived:
            held = [n for n in node.inputs if self._at.get(n, -1) > self._ends[call]]
            found = tuple(n for n in held if holds_numbers(self._program.values[n]))
            if found:
                self._arrived[call] = found

    def _again(self, number: int) -> int:
        """Return the number of a value that is made again where it must be; else `number`."""
        node, call = self._makers.get(number), self._call(self._makers.get(number))
        if number in self._twins:
            return self._twins[number]
        if node is None or not (call in self._arrived or number in self._of_weights):
            return number
        if call is None and self._is_whole(number):
            return number
        inputs = [self._again(each) for each in node.inputs]
        outputs = [self._program.add(dataclasses.replace(self._program.values[n])) for n in node.outputs]
        waits = self._arrived.get(call, ()) if call is not None and inputs == node.inputs else ()
        self._add(dataclasses.replace(node, inputs=inputs, outputs=outputs, after=waits))
        self._twins.update(zip(node.outputs, outputs))
        return self._twins[number]

    def _is_whole(self, number: int) -> bool:
        """Return whether the weights that a value depends on were gathered last."""
        node = self._makers.get(number)
        if node is None or number not in self._of_weights:
            return True
        return (
            number in self._whole
            if _is_gather(self._program, node)
            else all(map(self._is_whole, node.inputs))
        )


def _let_gathers_wait(program: Program) -> None:
    """Let the gather of a weight wait for what the last use of another weight waits for, so that they overlap."""
    weights = _find_of_weights(program)
    waits: tuple[int, ...] = ()
    for node in program.nodes:
        if _is_gather(program, node):
            node.after = waits
        elif not weights.isdisjoint(node.inputs) and weights.isdisjoint(node.outputs):
            others = (n for n in node.inputs if n not in weights and holds_numbers(program.values[n]))
            waits = tuple(others) or waits


def _let_gradients_wait(program: Program, most: int) -> None:
    """Let the backward pass wait for the sums of the gradients before the last packs."""
    sent, sizes, packs = list[int](), list[tuple[int, tf.DType]](), list[list[int]]()
    waiting, sums, arrived, due = set[int](), tuple[int, ...](), 0, 0
    for node in program.nodes:
        if _is_scatter(program, node):
            sent += node.outputs
            sizes.append(_size_of(program, node.outputs[0], most))
            packs = pack_neighbours(sizes, most)
            due = _number_to_come([sum(sizes[n][0] for n in pack) for pack in packs], most)
            continue
        if due > arrived:
            sums, waiting, arrived = tuple(sent[pack[-1]] for pack in packs[arrived:due]), set(), due
        if not waiting.isdisjoint(node.inputs):
            waiting.update(node.outputs)
        elif sums and _reads_numbers(node) and node.inputs and not program.find_fixed(node):
            node.after = (*node.after, *sums)
            waiting.update(node.outputs)


def _let_sums_share_packs(program: Program, most: int) -> None:
    """Let sums for an optimizer along an axis of the mesh wait for those of their pack, so that they are sent together."""
    makers = {number: (at, node) for at, node in enumerate(program.nodes) for number in node.outputs}
    for apply in (node for node in program.nodes if isinstance(node, Apply)):
        alike: dict[tuple[int, tf.DType], list[tuple[int, Convert]]] = {}
        for at, node in (makers[number] for number in apply.inputs if number in makers):
            if isinstance(node, Convert) and program.labels_around(node) == (PARTIAL_SUM, REPLICATED):
                alike.setdefault((node.axis, program.values[node.source].dtype), []).append((at, node))
        for sums in alike.values():
            sizes = [_size_of(program, node.source, most) for _, node in sums]
            for pack in pack_neighbours(sizes, most):
                sources = [sums[n][1].source for n in pack]
                for at, node in (sums[n] for n in pack):
                    node.after = tuple(n for n in sources if makers.get(n, (0,))[0] < at and n != node.source)


def _size_of(program: Program, number: int, most: int) -> tuple[int, tf.DType]:
    """Return the bytes of a replica's part of a value, with `most` for an extent that is not known, and its dtype."""
    shape, dtype = program.local_shape(number), program.values[number].dtype
    extents = [n if isinstance(n, int) else most for n in ([None] if shape is None else shape)]
    return math.prod(extents) * dtype.size, dtype


def _number_to_come(packs: Sequence[int], most: int) -> int:
    """Return how many packs to wait for: after them the largest one and the bytes of one more may be in flight."""
    in_flight = largest = 0
    for number, size in reversed([*enumerate(packs, 1)]):
        in_flight, largest = in_flight + size, max(largest, size)
        if in_flight - largest > most:
            return number
    return 0
