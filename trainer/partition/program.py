"""The partitioned step as a list: operations of the traced step, and the conversions between them.

Built by `partition.py`, copied into the graph of each replica by `rebuild.py`, put into words by `explain.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .labels import REPLICATED, Label, needs_collective

PROBES = 20160, 30240
"""Two sizes of a batch that many numbers divide: what differs between them depends on the batch."""

LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")

Shape = list[int | None] | None


@dataclasses.dataclass
class Value:
    """One tensor of the step.

    Attributes:
        dtype: of the tensor.
        shapes: the shape on one device for each of `PROBES`; None where the rank is not known. That of a list of tensors
            is the shape of its elements.
        label: how it is distributed.
        constant: None, or what a small integer tensor is for each of `PROBES`.
        elements: None, or the constant that each element of a list is.
        free: whether it is made of replicated inputs alone, so that any label of it can be made without a collective.
        shared: whether a resource is that of a variable whose value is the sum of the copies of all replicas.
    """

    dtype: tf.DType
    shapes: tuple[Shape, Shape]
    label: Label = REPLICATED
    constant: tuple[np.ndarray, np.ndarray] | None = None
    elements: tuple[np.ndarray, np.ndarray] | None = None
    free: bool = False
    shared: bool = False


@dataclasses.dataclass
class Copy:
    """An operation of the traced step that every replica runs.

    Attributes:
        op: which.
        inputs, outputs: numbers of values.
        made: labels of the outputs as the operation makes them; `Value.label` is that after a local factor.
        controls: operations of the traced step that have to run before.
        bodies: for each function that a branch or a loop names, how it is partitioned.
        own_seed: whether each replica draws numbers of its own.
        attributes: those that are not as traced.
        of_samples: whether it adds up samples, of which a borrowed one must not count.
    """

    op: tf.Operation
    inputs: list[int]
    outputs: list[int]
    made: list[Label]
    controls: list[tf.Operation] = dataclasses.field(default_factory=list)
    bodies: dict[str, Program] = dataclasses.field(default_factory=dict)
    own_seed: bool = False
    of_samples: bool = False
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Convert:
    """A value with one label becomes a value with another one.

    Attributes:
        source, target: numbers of values.
        cause: the operation that needs it; None: the value leaves the step.
    """

    source: int
    target: int
    cause: tf.Operation | None = None


@dataclasses.dataclass
class Apply:
    """An optimizer is given gradients in the middle of a step.

    Attributes:
        number: of the call.
        inputs: numbers of values; those that are SHARDED are slices, of which a borrowed sample must not count.
    """

    number: int
    inputs: list[int]


@dataclasses.dataclass
class Read:
    """A sharded weight is gathered, for the operations that read it here.

    Attributes:
        number: of the read.
        inputs: none.
        outputs: the number of the value.
    """

    number: int
    inputs: list[int]
    outputs: list[int]


Node = Copy | Convert | Apply | Read


def inputs_of(node: Node) -> list[int]:
    """The numbers of the values that a node reads."""
    return [node.source] if isinstance(node, Convert) else node.inputs


def outputs_of(node: Node) -> list[int]:
    """The numbers of the values that a node makes."""
    return [node.target] if isinstance(node, Convert) else [] if isinstance(node, Apply) else node.outputs


@dataclasses.dataclass
class Program:
    """A partitioned step, or the body of a branch or a loop in it.

    Attributes:
        values: all of them; shared with the bodies inside of it.
        nodes: in an order in which they can run.
        inputs: numbers of the values that it is called with.
        captures: tensors of outside, each with the number of its value.
        outputs: numbers of the values that it returns.
    """

    values: list[Value]
    nodes: list[Node] = dataclasses.field(default_factory=list)
    inputs: list[int] = dataclasses.field(default_factory=list)
    captures: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    outputs: list[int] = dataclasses.field(default_factory=list)

    def collectives(self) -> list[Convert]:
        """The conversions that communicate."""
        return [node for node in self.nodes if isinstance(node, Convert) and self.communicates(node)]

    def communicates(self, node: Node) -> bool:
        """Whether a node is a conversion for which replicas have to exchange something."""
        if not isinstance(node, Convert):
            return False
        return needs_collective(self.values[node.source].label, self.values[node.target].label)

    def stages(self) -> list[tuple[list[Node], list[Convert]]]:
        """The nodes in stages: what runs without the others, and the conversions at its end that communicate.

        What touches a resource keeps its order, and what comes after an optimizer's call stays after it.
        """
        made: dict[int, int] = {}
        touched: dict[int, int] = {}
        of_operation: dict[int, int] = {}
        applied = 0
        stages: list[tuple[list[Node], list[Convert]]] = []
        for node in self.nodes:
            reads = inputs_of(node)
            stage = max((made.get(number, 0) for number in reads), default=0)
            if isinstance(node, Copy):
                held = [number for number in reads if self.values[number].dtype == tf.resource]
                before = [touched.get(number, 0) for number in held]
                before += [of_operation.get(id(op), 0) for op in node.controls]
                stage = max([stage, *before, applied if held or node.op.op_def.is_stateful else 0])
                touched.update(dict.fromkeys(held, stage))
                of_operation[id(node.op)] = stage
            elif isinstance(node, Read):
                stage = max(stage, applied)
            elif isinstance(node, Apply):
                stage = applied = max([stage, applied, *touched.values()])
            while len(stages) <= stage:
                stages.append(([], []))
            if isinstance(node, Convert) and self.communicates(node):
                stages[stage][1].append(node)
                made[node.target] = stage + 1
            else:
                stages[stage][0].append(node)
                made.update(dict.fromkeys(outputs_of(node), stage))
        return stages


def received(program: Program) -> set[int]:
    """The numbers of the values that a collective gave, bitwise equal on every replica."""
    found: set[int] = set()
    for node in program.nodes:
        if isinstance(node, Convert) and (program.communicates(node) or node.source in found):
            found.add(node.target)
    return found


def shape_of(shape: Any) -> Shape:
    """A `TensorShape` as a list."""
    return None if shape.rank is None else shape.as_list()


def varying_axes(shapes: Sequence[Shape]) -> list[int] | None:
    """The axes whose extents depend on the size of the batch or are not known; None where the rank is not known."""
    one, other = shapes
    if one is None or other is None:
        return None
    return [axis for axis, (a, b) in enumerate(zip(one, other)) if a is None or a != b]
