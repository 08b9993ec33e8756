"""Functions that compute what they return and nothing else, and what may not be left out of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.atomic_function import from_func_graph
from tensorflow.python.framework import op_def_registry, ops

_DRAWS = [
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "Random",
    "SampleDistorted",
    "StatelessMultinomial",
    "StatelessParameterized",
    "StatelessRandom",
    "StatelessSample",
    "StatelessShuffle",
    "StatelessTruncatedNormal",
    "TruncatedNormal",
]  # how their names begin
_NO_DRAW = ("StatelessRandomGetAlg", "StatelessRandomGetKeyCounter")
_LEAVE_NO_TRACE = """
AllCandidateSampler Arg Assert Case CheckNumerics CheckNumericsV2 CudnnRNN CudnnRNNBackprop
CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3 DeepCopy DeviceIndex Empty FakeParam
FixedUnigramCandidateSampler GuaranteeConst HashTable HashTableV2 If IsTensorFloat32Enabled
LearnedUnigramCandidateSampler LogUniformCandidateSampler LookupTableExportV2 LookupTableFindV2
LookupTableSizeV2 Multinomial NonDeterministicInts ParameterizedTruncatedNormal PartitionedCall
Placeholder RandomCrop RandomGamma RandomGammaV2 RandomPoisson RandomPoissonV2 RandomShuffle
RandomStandardNormal RandomUniform RandomUniformInt ReadVariableOp ResourceGather ResourceGatherNd
ResourceStridedSlice SampleDistortedBoundingBox SampleDistortedBoundingBoxV2 StackCloseV2 StackPopV2
StackPushV2 StackV2 StatefulPartitionedCall StatelessCase StatelessIf StatelessRandomGetAlg
StatelessWhile TensorArrayCloseV3 TensorArrayConcatV3 TensorArrayGatherV3 TensorArrayGradV3
TensorArrayGradWithShapeV3 TensorArrayReadV3 TensorArrayScatterV3 TensorArraySizeV3
TensorArraySplitV3 TensorArrayV3 TensorArrayWriteV3 ThreadUnsafeUnigramCandidateSampler Timestamp
TruncatedNormal UniformCandidateSampler VarHandleOp VarIsInitializedOp VariableShape While
XlaCallModule
"""
_SAME_ON_REPLICAS = ("Const", "ReadVariableOp", "ResourceGather", "VariableShape")
_HARMLESS = frozenset(_LEAVE_NO_TRACE.split())  # stateful operations


def _draws(operation: str) -> bool:
    begins = operation.startswith(tuple(_DRAWS)) and not operation.startswith(_NO_DRAW)
    return begins or operation.endswith("CandidateSampler")


class Pruned:
    """A function that computes what it returns and nothing else. Called with tensors; returns a nest of NumPy arrays.

    Attributes:
        draws_numbers: whether random numbers are drawn in it.
    """

    def __init__(self, function: Any, structure: Any, draws_numbers: bool) -> None:
        self.function, self.structure, self.draws_numbers = function, structure, draws_numbers

    def __call__(self, *tensors: Any) -> Any:
        """Computes it."""
        results = self.function(*tensors)
        return tf.nest.pack_sequence_as(self.structure, [result.numpy() for result in results])


def prune_to(fn: Callable[..., Any], signature: list[tf.TensorSpec]) -> Pruned:
    """`fn(*tensors)` as a graph that holds what its result (a nest of tensors) depends on, and nothing else.

    What `fn` writes to a `tf.Variable` and reads again is there what it was before.

    Raises:
        RuntimeError: the result depends on an operation that leaves a trace (a draw that moves a generator on, Python code).
    """
    kept: dict[str, Any] = {}

    def traced(*tensors: tf.Tensor) -> list[tf.Tensor]:
        kept["result"] = fn(*tensors)
        return [tf.identity(value) for value in tf.nest.flatten(kept["result"])]

    graph: Any = tf.compat.v1.wrap_function(traced, signature).graph
    structure = tf.nest.map_structure(lambda value: 0, kept["result"])
    if not graph.outputs:
        return Pruned(lambda *tensors: [], structure, False)
    _wait_for_no_write(graph)
    part: Any = _NeededPart(graph)
    library = graph.as_graph_def(add_shapes=False).library.function
    types = {op.type for op in part.operations} | {node.op for each in library for node in each.node_def}
    traces = set(filter(_leaves_a_trace, types))
    if traces:
        raise RuntimeError(f"What is computed leaves a trace: {', '.join(sorted(traces))}.")
    function = from_func_graph(f"{graph.name}_{ops.uid()}", part, {})
    function._cached_graph = None  # nothing else needs the graph
    captured = graph.external_captures
    return Pruned(
        lambda *tensors: function.call_flat(*tensors, *captured),
        structure,
        any(map(_draws, types)),
    )


class _NeededPart:
    """A graph as if it held only what its outputs depend on: TensorFlow makes a function of that, and copies nothing."""

    def __init__(self, graph: Any) -> None:
        self.whole = graph
        self.operations = operations_behind(graph.outputs)

    def get_operations(self) -> list[Any]:
        return self.operations

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


def operations_behind(tensors: Sequence[Any], until: Collection[int] = ()) -> list[Any]:
    """The operations that compute `tensors`; what is behind those whose ids are in `until` is left out."""
    found: list[Any] = []
    waiting, seen = [tensor.op for tensor in tensors if id(tensor) not in until], set()
    while waiting:
        operation = waiting.pop()
        if operation in seen:
            continue
        seen.add(operation)
        found.append(operation)
        waiting += [tensor.op for tensor in operation.inputs if id(tensor) not in until]
        waiting += operation.control_inputs
    return found


def depends_on_inputs(tensor: Any) -> bool:
    """Whether a tensor of a graph is computed of more than constants, variables and what was there before the graph."""
    if hasattr(tensor, "numpy"):
        return tensor.dtype in (tf.resource, tf.variant)  # an iterator, say
    captured = {id(inner): outer for outer, inner in getattr(tensor.graph, "captures", ())}
    waiting, seen = [tensor], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen or each.op.type in _SAME_ON_REPLICAS:
            continue
        seen.add(id(each))
        if not each.op.inputs and (id(each) not in captured or depends_on_inputs(captured[id(each)])):
            return True
        waiting += each.op.inputs
    return False


def _wait_for_no_write(graph: Any) -> None:
    """What reads a variable after a write of this graph reads what it is before."""
    for operation in graph.get_operations():
        before = operation.control_inputs
        kept = [each for each in before if each.outputs or not _leaves_a_trace(each.type)]
        if len(kept) < len(before):
            operation._remove_all_control_inputs()
            operation._add_control_inputs(kept)


def only_computes(operations: Sequence[Any]) -> bool:
    """Whether the operations leave no trace and draw no number."""
    types = {operation.type for operation in operations}
    return not any(_draws(name) or _leaves_a_trace(name) for name in types)


def _leaves_a_trace(operation: str) -> bool:
    return operation not in _HARMLESS and _is_stateful(operation)


def _is_stateful(operation: str) -> bool:
    definition = op_def_registry.get(operation)
    return definition is not None and definition.is_stateful


def drawing_operations(graph: Any) -> list[str]:
    """The names of the operations of a graph, its functions included, that draw random numbers from a state of their own."""
    definition = graph.as_graph_def(add_shapes=False)
    nodes = [*definition.node, *(node for each in definition.library.function for node in each.node_def)]
    return sorted({node.name for node in nodes if _draws(node.op) and _is_stateful(node.op)})
