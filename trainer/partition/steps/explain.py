"""Explains a partitioned step: the collectives of a step, their sizes, and the lines of user code that cause them."""

import dataclasses
import math
from collections.abc import Sequence

from ....compat.tensorflow_graphs.made_operations import stands_for
from ....compat.tensorflow_graphs.one_device import line_of_user
from ....distribute.hardware.device_memory import in_words
from ....distribute.mesh import Mesh
from ..labels import MEAN_OF_STATISTICS, PARTIAL_SUM, REPLICATED
from ..needed_operations import APPLY
from ..operation_labels import describe_need
from ..program import Apply, Convert, Program, Value
from ..sizes.size_arrays import at

_APPLIED = "the optimizer applies them"


@dataclasses.dataclass(frozen=True)
class Collective:
    """One tensor, or several that are sent together, that replicas exchange in a step.

    Attributes:
        kind: "all-reduce", "all-gather" or "reduce-scatter".
        what: the tensors: their shapes for the given batch and dtype, or a description.
        bytes: of one replica's result, in one step; of what it divides in a reduce-scatter.
        cause: the operation that needs it, such as "MatMul", or its purpose.
        line: `file.py:41`, or empty where no line of user code is known.
        code: the text of the line, or empty.
        reason: why it is needed.
        over: the axis of the mesh along which replicas exchange it, or empty where all do.
    """

    kind: str
    what: str
    bytes: int
    cause: str
    line: str = ""
    code: str = ""
    reason: str = ""
    over: str = ""

    def __str__(self) -> str:
        place = f" in {self.line}" if self.line else ""
        code = f", `{self.code}`" if self.code else f" ({self.cause})"
        reason = f": {self.reason}" if self.reason else ""
        over = f" over {self.over!r}" if self.over else ""
        return f"{self.kind}{over} of {self.what} ({in_words(self.bytes)}){place}{code}{reason}"


@dataclasses.dataclass(frozen=True)
class StepExplanation:
    """How replicas share a training step; `str()` gives a readable text.

    Attributes:
        replicas: that share a batch.
        samples: of the batch.
        collectives: in the order of the step.
        exits: for each result of the step, its name and its distribution. Partial sums are summed once for many steps:
            logs at the end of a compiled call, metrics when they are read.
        whole: why the step runs on one replica; empty where it is partitioned.
    """

    replicas: int
    samples: int
    collectives: tuple[Collective, ...] = ()
    exits: tuple[tuple[str, str], ...] = ()
    whole: str = ""

    @property
    def bytes(self) -> int:
        """The bytes of all collectives of a step."""
        return sum(each.bytes for each in self.collectives)

    def __str__(self) -> str:
        batch = f"a batch of {self.samples} samples on {self.replicas} replicas"
        if self.whole:
            return f"The step for {batch} runs on one replica, and the others wait: {self.whole}"
        count = len(self.collectives)
        said = f"{count} collective{'s' * (count != 1)}, {in_words(self.bytes)}"
        lines = [f"The step for {batch}: {said}"]
        lines += [f"  {number}. {each}" for number, each in enumerate(self.collectives, 1)]
        lines += ["Results:", *(f"  {name}: {how}" for name, how in self.exits)] if self.exits else []
        return "\n".join(lines)


def explain_program(
    program: Program, samples: int, mesh: Mesh, names: Sequence[str], variables: Sequence[int]
) -> StepExplanation:
    """Explain a program with outputs of these `names`; `variables` counts the variables of each optimizer call."""
    over = mesh.names if mesh.divides_weights else ("",)
    found: list[Collective] = []
    sums: dict[int, list[int]] = {}
    for node in program.nodes:
        if isinstance(node, Apply):
            given = [program.values[number] for number in node.inputs]
            summed = [_bytes(value, samples, mesh) for value in given if value.label == PARTIAL_SUM]
            parts = [_bytes(value, samples, mesh) for value in given if value.label.is_stored]
            sent = [("all-reduce", summed, ""), ("reduce-scatter", parts, over[0])]
            sent += [("all-reduce", sizes, over[axis]) for axis, sizes in sums.items()]
            sums = {}
            for kind, sizes, along in sent:
                count = min(len(sizes), variables[node.number])
                what = f"the gradients of {count} variables"
                found += [Collective(kind, what, sum(sizes), _APPLIED, over=along)] if sizes else []
        elif isinstance(node, Convert) and program.labels_around(node)[1].is_stored:
            continue  # counted with the others of the optimizer's call
        elif isinstance(node, Convert) and program.communicates(node) and mesh.shape[node.axis] > 1:
            if _is_for_optimizer(node) and program.labels_around(node)[0].is_partial:
                sums.setdefault(node.axis, []).append(
                    _bytes(program.values[node.source], samples, mesh, node.axis)
                )
            else:
                found.append(_collective(program, node, samples, mesh, over[node.axis]))
    exits = [(name, _exit(program, number)) for name, number in zip(names, program.outputs)]
    return StepExplanation(math.prod(mesh.shape), samples, tuple(found), tuple(exits))


def _is_for_optimizer(node: Convert) -> bool:
    return node.cause is not None and stands_for(node.cause, APPLY) is not None


def _collective(program: Program, node: Convert, samples: int, mesh: Mesh, over: str) -> Collective:
    value, (have, _) = program.values[node.source], program.labels_around(node)
    what, size = _shape(value, samples, mesh, node.axis), _bytes(value, samples, mesh, node.axis)
    if have.is_stored:
        return Collective("all-gather", what, size, "a sharded weight is read", over=over)
    kind = "all-gather" if have.is_sharded or have.counts_values else "all-reduce"
    if _is_for_optimizer(node):
        return Collective(kind, what, size, _APPLIED, over=over)
    line, code = ("", "") if node.cause is None else line_of_user(node.cause)
    cause = "a result of the step" if node.cause is None else node.cause.type
    reason = "the operation needs all parts" if node.axis else describe_need(have, node.cause)
    return Collective(kind, what, size, cause, line, code, reason, over)


def _exit(program: Program, number: int) -> str:
    label = program.values[number].label
    for node in program.nodes:
        if isinstance(node, Convert) and node.target == number:
            before = program.values[node.source].label
            if before in (REPLICATED, MEAN_OF_STATISTICS) or before == label:
                break
            return f"{before}, made {label}"
    return str(label)


def _extents(value: Value, samples: int, mesh: Mesh, axis: int) -> list[int | None]:
    """Return the shape of one replica's part, whole along an axis of the mesh, over which it is exchanged."""
    extents = list(at(value.shape or (), samples))
    for number, (label, parts) in enumerate(zip(value.labels, mesh.shape)):
        if number == axis or not label.is_sharded or label.axis >= len(extents):
            continue
        if (extent := extents[label.axis]) is not None:
            extents[label.axis] = -(-extent // parts)
    return extents


def _shape(value: Value, samples: int, mesh: Mesh, axis: int) -> str:
    extents = _extents(value, samples, mesh, axis)
    shape = "x".join("?" if extent is None else str(extent) for extent in extents)
    return f"{shape} {value.dtype.name}" if shape else f"a {value.dtype.name} scalar"


def _bytes(value: Value, samples: int, mesh: Mesh, axis: int = 0) -> int:
    known = [extent for extent in _extents(value, samples, mesh, axis) if extent is not None]
    return math.prod(known) * max(value.dtype.size or 0, 0)
