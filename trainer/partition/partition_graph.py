"""The partitioning pass: labels every tensor of a traced step, and inserts conversions where an operation needs another."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from .builder import Builder
from .composite_arrays import RaggedArray, SparseArray
from .labels import MEAN_OF_STATISTICS, REPLICATED, Label, Labels, label_sharded, with_label
from .needed_operations import find_needed_operations
from .program import BATCH, MeshAxis, NeedsWhole, NotPartitioned, Program, Value
from .sizes.size import Entries, Length, Samples, Size
from .sizes.size_arrays import shape_of


class _SamplesJoined(Exception):
    """The step needs arrays to have the same number of samples, which was not known when the pass began."""


def partition_graph(
    graph: Any,
    batch: int,
    outputs: Sequence[Label | Labels],
    contents: Callable[[Any], Labels | None],
    gradients: Sequence[Sequence[Labels | None]] = (),
    is_local: Callable[[tf.Operation], bool] = lambda op: False,
    mesh: Sequence[MeshAxis] = (BATCH,),
    arrays: Sequence[RaggedArray | SparseArray] = (),
    results: Sequence[RaggedArray] = (),
) -> Program:
    """Partition a traced step, or raise `NotPartitioned`.

    The first `batch` inputs of `graph` are the batch, with samples along axis 0 where they have axes. `outputs` are the
    requested labels of its outputs: one for each axis of the mesh, or the same along all. `contents` returns the labels of
    the value of a variable with this captured resource; None: replicas have copies. `gradients` has for each call of an
    optimizer the labels that it needs of its gradients, or None for parts of a sum, and then those of what the step has
    assigned before. `is_local` tells whether an operation is declared to compute statistics of a replica's own samples.
    `mesh` has the axes of the mesh of replicas, first that of the batch. `arrays` are those of the batch that have
    several inputs, and `results` those that have several outputs: their parts stay, or are gathered together.
    """
    leaves = [n for n in read_inputs(graph, batch) if graph.inputs[n].shape.rank]
    named = dict.fromkeys([*leaves, *(number for array in arrays for number in array.tensors)])
    names = {n: [Samples(), *(Length() for _ in graph.inputs[n].shape[1:])] for n in named}
    for array in arrays:
        array.count(names)
    whole: set[str] = set()

    def find_groups() -> dict[Samples, list[int]]:
        groups: dict[Samples, list[int]] = {}
        for number in leaves:
            groups.setdefault(names[number][0].find(), []).append(number)
        return groups

    def check() -> None:
        if len(find_groups()) < joined:
            raise _SamplesJoined

    while True:
        joined = len(groups := find_groups())
        samples = [each for each in groups if not isinstance(each, Entries)]
        program = Program([], one_size=len(samples) == 1, mesh=mesh)
        builder = Builder(program, gradients, is_local, whole_ops=whole)
        builder.check = check
        try:
            program = _one_pass(builder, graph, batch, outputs, contents, names, arrays, results)
        except NeedsWhole as found:
            if found.producer in whole:
                raise NotPartitioned(str(found)) from None
            whole.add(found.producer)
            continue
        except _SamplesJoined:  # what the pass has learnt may save collectives
            continue
        for each, group in find_groups().items():
            if len(group) > 1:
                (program.equal_values if isinstance(each, Entries) else program.equal).append(group)
        return program


def read_inputs(graph: Any, batch: int) -> list[int]:
    """Return the numbers of the inputs among the first `batch` that the step reads; the others may have any size."""
    needed = find_needed_operations(graph)
    return [number for number, tensor in enumerate(graph.inputs[:batch]) if tensor.op.name in needed]


def _one_pass(
    builder: Builder,
    graph: Any,
    batch: int,
    outputs: Sequence[Label | Labels],
    contents: Callable[[Any], Labels | None],
    names: Mapping[int, Sequence[Samples]],
    arrays: Sequence[RaggedArray | SparseArray],
    results: Sequence[RaggedArray],
) -> Program:
    for number, tensor in enumerate(graph.inputs):
        shape = shape_of(tensor.shape)
        if shape and number < batch:
            shape[0] = None
            for axis, name in enumerate(names.get(number, ())):
                shape[axis] = Size.of(name) if shape[axis] is None else shape[axis]
        lead = label_sharded(0) if number < batch and shape else REPLICATED
        builder.add(Value(tensor.dtype, shape, with_label(builder.replicated_labels, 0, lead)))
    program = builder.program
    for array in arrays:
        array.describe(*(program.values[number] for number in array.tensors))
    program.inputs = list(range(batch))
    program.places = [array.tensors[0] for array in arrays if isinstance(array, SparseArray)]
    for number, (outer, _) in enumerate(graph.captures, start=len(graph.inputs) - len(graph.captures)):
        held = contents(outer) if outer.dtype == tf.resource else None
        program.values[number].labels = held or builder.replicated_labels
        program.captures.append((outer, number))
    wanted: list[Sequence[Label | None]]
    wanted = [(each,) * len(program.mesh) if isinstance(each, Label) else each for each in outputs]
    builder.states = {id(t) for t, want in zip(graph.outputs, wanted) if want[0] == MEAN_OF_STATISTICS}
    found = builder.walk(graph, list(range(len(graph.inputs))))
    found = [builder.read(tensor, number, None) for tensor, number in zip(graph.outputs, found)]
    labels = [program.values[number].label for number in found]
    for array in results:
        lead = None if array.is_divided(labels) else REPLICATED
        for number in array.tensors:
            wanted[number] = (lead, *builder.replicated_labels[1:])
    program.outputs = [builder.convert(number, wants, None) for number, wants in zip(found, wanted)]
    program.drop_unread()
    return program
