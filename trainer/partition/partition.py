"""The partitioning pass: labels every tensor of a traced step, and inserts conversions where an operation needs another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from .builder import Builder, needed_operations
from .labels import MEAN_OF_STATISTICS, REPLICATED, Label, sharded
from .program import PROBES, ListIsGathered, NotPartitioned, Program, Value, shape_of

_MULTIPLES = (1, 11, 13, 17, 19, 23, 29, 31)


def partitioned(
    graph: Any,
    batch: int,
    outputs: Sequence[Label | None],
    sums_on_read: Callable[[Any], bool],
    slices: Sequence[Sequence[bool]] = (),
    is_local: Callable[[tf.Operation], bool] = lambda op: False,
) -> Program:
    """Partition a traced step, or raise `NotPartitioned`.

    The first `batch` inputs of `graph` are the batch, with samples along axis 0 where they have axes. `outputs` are the
    requested labels of its outputs. `sums_on_read` tells of a captured resource whether it is a variable whose value is the
    sum of the replicas' copies. `slices` tells for each call of an optimizer which of its gradients are slices, values and
    indices. `is_local` tells whether an operation is declared to compute statistics of a replica's own samples.
    """
    leaves = [n for n in read_inputs(graph, batch) if graph.inputs[n].shape.rank]

    def labelled(multiples: Mapping[int, int], one_size: bool) -> Program:
        """Repeats the pass, with whole inputs for producers of lists that would have to be gathered."""
        whole: set[str] = set()
        while True:
            builder = Builder(Program([], one_size=one_size), slices, is_local, whole_ops=whole)
            try:
                return _one_pass(builder, graph, batch, outputs, sums_on_read, multiples)
            except ListIsGathered as found:
                if found.producer in whole:
                    raise NotPartitioned(
                        f"{found.producer} makes a list of tensors that would have to be gathered"
                    ) from None
                whole.add(found.producer)

    try:  # without the same static size in all leaves, their sizes may differ
        multiples = dict(zip(leaves, _MULTIPLES)) if len(leaves) > 1 else {}
        return labelled(multiples, not multiples)
    except ValueError:
        pass
    try:  # two leaves whose sizes cannot differ have one; of three, one may still have another
        sizes = {graph.inputs[leaf].shape[0] for leaf in leaves}
        return labelled({}, len(sizes) == 1 and (len(leaves) <= 2 or None not in sizes))
    except ValueError as error:
        raise NotPartitioned(f"its shapes fit one size of the batch alone: {error}") from error


def read_inputs(graph: Any, batch: int) -> list[int]:
    """The numbers of the inputs among the first `batch` that the step reads; the others may have any size."""
    needed = needed_operations(graph)
    return [number for number, tensor in enumerate(graph.inputs[:batch]) if tensor.op.name in needed]


def _one_pass(
    builder: Builder,
    graph: Any,
    batch: int,
    outputs: Sequence[Label | None],
    sums_on_read: Callable[[Any], bool],
    multiples: Mapping[int, int],
) -> Program:
    for number, tensor in enumerate(graph.inputs):
        shape = shape_of(tensor.shape)
        both = shape, shape
        if number < batch and shape:
            each = [size * multiples.get(number, 1) for size in PROBES]
            both = [each[0], *shape[1:]], [each[1], *shape[1:]]
        builder.add(Value(tensor.dtype, both, sharded(0) if number < batch and shape else REPLICATED))
    program = builder.program
    program.inputs = list(range(batch))
    for number, (outer, _) in enumerate(graph.captures, start=len(graph.inputs) - len(graph.captures)):
        program.values[number].shared = outer.dtype == tf.resource and sums_on_read(outer)
        program.captures.append((outer, number))
    builder.states = {id(t) for t, label in zip(graph.outputs, outputs) if label == MEAN_OF_STATISTICS}
    found = builder.walk(graph, list(range(len(graph.inputs))))
    found = [builder.read(tensor, number, None) for tensor, number in zip(graph.outputs, found)]
    program.outputs = [builder.converted(number, label, None) for number, label in zip(found, outputs)]
    program.drop_unread()
    return program
