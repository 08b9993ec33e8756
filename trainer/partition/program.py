"""The partitioned step as a list: operations of the traced step, and the conversions between them.

Built by `partition_graph.py`, copied into the graph of each replica by `rebuild.py`, described by `explain.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .labels import REPLICATED, Label, Labels, needs_collective
from .sizes.bounds import ANY, Interval
from .sizes.positions import Progression
from .sizes.size import Extent, Shape, is_divided
from .sizes.size_arrays import plain

LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")


class NotPartitioned(Exception):
    """The step cannot be partitioned. The message gives the reason.

    `calls_python` tells whether the traced step runs Python code; None where it was not traced to its end.
    """

    calls_python: bool | None = None


class NeedsCollective(Exception):
    """An operation in a branch or a loop needs a collective: its inputs are converted before the branch or loop."""


class NeedsWhole(Exception):
    """The operation named `producer` must get whole tensors, for a reason that a later one has."""

    def __init__(self, producer: str, reason: str) -> None:
        super().__init__(f"{producer} {reason}")
        self.producer = producer


@dataclasses.dataclass(frozen=True)
class MeshAxis:
    """An axis of the mesh of replicas.

    Attributes:
        parts: the number of equal parts that it divides weights into; None: it divides the samples of the batch, unevenly.
    """

    parts: int | None = None

    @property
    def of_batch(self) -> bool:
        """Whether it divides the samples of the batch."""
        return self.parts is None

    def divides(self, extent: Extent, blocks: int = 1) -> bool:
        """Return whether each block of a tensor's axis certainly has a part for every sample, or for every replica."""
        if self.parts is None:
            return is_divided(extent, blocks)
        return isinstance(extent, int) and extent % (blocks * self.parts) == 0


BATCH = MeshAxis()


@dataclasses.dataclass
class Value:
    """One tensor of the step.

    Attributes:
        shape: the single-device shape for every batch. That of a list of tensors is the shape of its elements.
        labels: how it is distributed along each axis of the mesh; of the resource of a variable, its contents.
        constant: None, or the value of a small integer tensor for every batch, an array of sizes.
        elements: None, or the constant value of each element of a list.
        interval: bounds of its numbers.
        progression: None, or in which way its numbers count the samples.
        sums: of the axes of a broadcast gradient, for each axis whether it is one of them (None: not known), if
            `constant` is None.
        free: whether it depends on replicated inputs alone, so that any label of it needs no collective.
    """

    dtype: tf.DType
    shape: Shape
    labels: Labels = (REPLICATED,)
    constant: np.ndarray | None = None
    elements: np.ndarray | None = None
    interval: Interval = ANY
    progression: Progression | None = None
    sums: tuple[bool | None, ...] = ()
    free: bool = False

    @property
    def label(self) -> Label:
        """How it is distributed over the samples of the batch."""
        return self.labels[0]

    def forget_numbers(self) -> Value:
        """Return a value of which only shape and labels are known."""
        return dataclasses.replace(self, constant=None, interval=ANY, progression=None)


@dataclasses.dataclass
class Node:
    """A part of a program.

    Attributes:
        inputs, outputs: the numbers of the values that it reads and produces.
        after: those of values that it waits for.
    """

    inputs: list[int]
    outputs: list[int]
    after: Sequence[int] = dataclasses.field(default=(), kw_only=True)


@dataclasses.dataclass
class Copy(Node):
    """An operation of the traced step that every replica runs.

    Attributes:
        made: labels of the outputs before a local factor; `Value.labels` are those after it.
        bodies: for each function of a branch or a loop, its partitioned program.
        origin: None, or the operation of the traced step in a function of which `op` is.
    """

    op: tf.Operation
    made: list[Labels]
    bodies: dict[str, Program] = dataclasses.field(default_factory=dict)
    origin: tf.Operation | None = None


@dataclasses.dataclass
class Convert(Node):
    """Converts a value from one label to another along `axis` of the mesh.

    It is for the operation `cause`; None: the value leaves the step.
    """

    cause: tf.Operation | None = None
    axis: int = 0

    @property
    def source(self) -> int:
        """The number of the value."""
        return self.inputs[0]

    @property
    def target(self) -> int:
        """The number of the converted value."""
        return self.outputs[0]


@dataclasses.dataclass
class Apply(Node):
    """Call `number` of an optimizer in the middle of a step. SHARDED inputs are slices, without a borrowed sample."""

    number: int


@dataclasses.dataclass
class Extents(Node):
    """A vector of sizes, `numbers` for one sample, of which that of `axis` is a multiple of a replica's samples.

    A -1 stands for an extent that the data decides, in the shape for a reshape.
    """

    numbers: tuple[int, ...]
    axis: int


@dataclasses.dataclass
class Program:
    """A partitioned step, or the body of a branch or a loop in it.

    `inputs`, `captures` (with captured tensors) and `outputs` have numbers of values.

    Attributes:
        values: all of them; shared with nested bodies.
        nodes: in an order in which they can run.
        equal: groups of inputs that the program takes to have the same number of samples, which the step checks.
        places: the inputs that have places of sparse arrays, which count from a replica's own first sample.
        equal_values: groups of the values of ragged arrays that it takes to have as many for each sample.
        one_size: whether all inputs that it reads have the same number of samples.
        mesh: the axes of the mesh of replicas, first that of the batch.
    """

    values: list[Value]
    nodes: list[Node] = dataclasses.field(default_factory=list)
    inputs: list[int] = dataclasses.field(default_factory=list)
    captures: list[tuple[Any, int]] = dataclasses.field(default_factory=list)
    outputs: list[int] = dataclasses.field(default_factory=list)
    equal: list[list[int]] = dataclasses.field(default_factory=list)
    places: Sequence[int] = ()
    equal_values: list[list[int]] = dataclasses.field(default_factory=list)
    one_size: bool = True
    mesh: Sequence[MeshAxis] = (BATCH,)

    def add(self, value: Value) -> int:
        """Return the number of a new value."""
        self.values.append(value)
        return len(self.values) - 1

    def communicates(self, node: Node) -> bool:
        """Return whether a node is a conversion that needs an exchange between replicas."""
        return isinstance(node, Convert) and needs_collective(*self.labels_around(node))

    def labels_around(self, node: Convert) -> tuple[Label, Label]:
        """Return the labels before and after a conversion, along its axis of the mesh."""
        return self.values[node.source].labels[node.axis], self.values[node.target].labels[node.axis]

    def local_shape(self, number: int) -> list[Extent] | None:
        """Return the shape of a replica's part of a value that the axes of the mesh but that of the batch divide."""
        value = self.values[number]
        shape = None if value.shape is None else [*value.shape]
        for label, axis in zip(value.labels[1:], self.mesh[1:]):
            extent = shape[label.axis] if shape is not None and label.is_sharded else None
            if shape is not None and isinstance(extent, int):
                shape[label.axis] = extent // (axis.parts or 1)
        return shape

    def find_fixed(self, node: Node) -> list[np.ndarray] | None:
        """Return the outputs of an operation on sizes that does not depend on the batch."""
        if not isinstance(node, Copy) or node.op.op_def.is_stateful:
            return None
        values = [self.values[number] for number in node.outputs]
        found = [None if any(label.is_sharded for label in v.labels) else plain(v.constant) for v in values]
        return None if any(value is None for value in found) else found  # type: ignore[return-value]

    def drop_unread(self) -> None:
        """Drop nodes without effects whose outputs nothing reads; a fixed output needs no inputs."""
        read, controls = set(self.outputs), set[int]()
        kept: list[Node] = []
        for node in reversed(self.nodes):
            op = node.op if isinstance(node, Copy) else None
            acts = isinstance(node, Apply) or (
                op is not None and (op.op_def.is_stateful or id(op) in controls)
            )
            if acts or not read.isdisjoint(node.outputs):
                if isinstance(node, Copy):
                    node.inputs = [] if self.find_fixed(node) else node.inputs
                    controls.update(map(id, node.op.control_inputs))
                read.update(node.inputs, node.after)
                kept.append(node)
        self.nodes = kept[::-1]

    def stages(self) -> list[tuple[list[Node], list[Convert]]]:
        """Return the nodes in stages: each has independent nodes, and at its end the conversions that communicate.

        Operations on a resource keep their order, and nodes after an optimizer's call stay after it.
        """
        made: dict[int, int] = {}
        touched: dict[int, int] = {}
        of_operation: dict[int, int] = {}
        applied = 0
        stages: list[tuple[list[Node], list[Convert]]] = []
        for node in self.nodes:
            stage = max((made.get(number, 0) for number in (*node.inputs, *node.after)), default=0)
            if isinstance(node, Copy):
                held = [number for number in node.inputs if self.values[number].dtype == tf.resource]
                before = [touched.get(number, 0) for number in held]
                before += [of_operation.get(id(op), 0) for op in node.op.control_inputs]
                stage = max([stage, *before, applied if held or node.op.op_def.is_stateful else 0])
                touched.update(dict.fromkeys(held, stage))
                of_operation[id(node.op)] = stage
            elif isinstance(node, Apply):
                stage = applied = max([stage, applied, *touched.values()])
            while len(stages) <= stage:
                stages.append(([], []))
            if isinstance(node, Convert) and self.communicates(node):
                stages[stage][1].append(node)
                made[node.target] = stage + 1
            else:
                stages[stage][0].append(node)
                made.update(dict.fromkeys(node.outputs, stage))
        return stages


def find_received(program: Program) -> set[int]:
    """Return the numbers of the values that collectives return, bitwise identical on every replica."""
    found: set[int] = set()
    if len(program.mesh) > 1:  # those of one axis are equal along this axis alone
        return found
    for node in program.nodes:
        if isinstance(node, Convert) and (program.communicates(node) or node.source in found):
            found.add(node.target)
    return found


def has_parts(label: Label, value: Value, mesh: MeshAxis) -> bool:
    """Return whether a value can have this label along an axis of the mesh, which must certainly divide its sharded axis."""
    if not label.is_sharded or label.chosen or value.dtype == tf.variant:
        return True
    return value.shape is not None and mesh.divides(value.shape[label.axis], label.blocks)
