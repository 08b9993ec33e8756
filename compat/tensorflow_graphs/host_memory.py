"""Places operations of a GPU's graph on the host where they compute sizes, so that the host need not wait for the GPU."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..side_table import SideTable
from ..upstream_places import kernels
from .graphs import SHAPES

_COMPUTE_SIZES = """
Add AddV2 All Any BroadcastArgs BroadcastGradientArgs Cast Concat ConcatOffset ConcatV2 Cumprod Cumsum DynamicStitch Equal
ExpandDims Fill FloorDiv FloorMod Gather GatherNd GatherV2 Greater GreaterEqual Identity InvertPermutation Less LessEqual
LogicalAnd LogicalNot LogicalOr Max Maximum Min Minimum Mul Neg NotEqual OnesLike Pack Prod Range RealDiv Reshape ReverseV2
Select SelectV2 Slice Split SplitV Squeeze StridedSlice Sub Sum Tile Transpose TruncateDiv TruncateMod Unpack ZerosLike
"""
_ARITHMETIC = frozenset(_COMPUTE_SIZES.split())
_COMPARISONS = frozenset(("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"))
_WHOLE = (tf.int32, tf.int64, tf.bool)
# The operations of a graph that compute whole numbers out of shapes (true) or of constants alone (false).
_known: SideTable[dict[str, bool]] = SideTable(dict)


def keep_sizes_on_host(operation: tf.Operation) -> None:
    """Place a new operation for a GPU on the host's CPU where it computes sizes out of shapes.

    TensorFlow keeps shapes in the host's memory but slices and multiplies them on the GPU. The host needs the result,
    so it waits for all earlier work of the GPU. A constant that a kernel reads from the host has the same effect.

    Not where TensorFlow's GPU kernel computes on the host as well. A constant that the operation reads from the host, such
    as the fill value of a rotated image, is placed there too.
    """
    known = _known.of(operation.graph)
    if operation.type in SHAPES:
        known[operation.name] = True
    elif operation.type in _ARITHMETIC and _is_known(operation, known):
        known[operation.name] = any(known.get(tensor.op.name) for tensor in operation.inputs)
        if known[operation.name] and not _computes_on_host(operation):
            _put_on_host(operation)
    else:
        for index, tensor in enumerate(operation.inputs):
            if _is_constant(tensor, besides=(tf.int32, tf.string)) and _takes_from_host(operation, index):
                _put_on_host(tensor.op)


def size_on_host(size: tf.Tensor) -> tf.Tensor:
    """Mark a tensor as computed on the host: operations on it and on shapes stay there."""
    if not tf.executing_eagerly():
        _known.of(size.op.graph)[size.op.name] = True
    return size


def compares_on_host(graph: Any, kind: str, inputs: Sequence[Any]) -> bool:
    """Return whether an operation compares a GPU's 32-bit integers, not scalars, as TensorFlow would on the host."""
    if kind not in _COMPARISONS or not all(each.dtype == tf.int32 for each in inputs):
        return False
    of_sizes = _known.of(graph)
    inside = all(getattr(each, "graph", None) is graph for each in inputs)  # an eager tensor has none
    known = inside and all(each.op.name in of_sizes or _is_constant(each) for each in inputs)
    return not known and any(each.shape.rank for each in inputs)


def widen_inputs(inputs: Sequence[Any], options: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the inputs of a comparison in 64 bits, and its other arguments."""
    attributes = {**options["attrs"], "T": tf.compat.v1.AttrValue(type=tf.int64.as_datatype_enum)}
    wide = {"attrs": attributes, "input_types": [tf.int64 for _ in inputs]}
    return [tf.cast(each, tf.int64) for each in inputs], options | wide


def _is_known(operation: tf.Operation, known: dict[str, bool]) -> bool:
    whole = all(tensor.dtype in _WHOLE for tensor in operation.outputs)
    return whole and all(tensor.op.name in known or _is_constant(tensor) for tensor in operation.inputs)


def _is_constant(tensor: tf.Tensor, besides: Sequence[tf.DType] = ()) -> bool:
    return tensor.op.type == "Const" and tensor.dtype not in besides


def _put_on_host(operation: tf.Operation) -> None:
    device = tf.DeviceSpec.from_string(operation.device).replace(device_type="CPU", device_index=0)
    operation._clear_attr("_class")  # it may have to be where the shape is
    operation._set_device(device.to_string())


def _computes_on_host(operation: tf.Operation) -> bool:
    """Return whether the kernel for GPUs takes all arguments from the host's memory, and puts the results there."""
    kept = _host_arguments(operation)
    definition = operation.op_def
    return kept is None or {each.name for each in (*definition.input_arg, *definition.output_arg)} <= kept


def _takes_from_host(operation: tf.Operation, index: int) -> bool:
    for argument in operation.op_def.input_arg:
        if argument.number_attr or argument.type_list_attr:
            return False  # none of these takes numbers that are written in a program
        if index == 0:
            return argument.name in (_host_arguments(operation) or ())
        index -= 1
    return False


def _host_arguments(operation: tf.Operation) -> frozenset[str] | None:
    """Return the arguments and results that the GPU kernel has in the host's memory; None if there is no such kernel."""
    for constraints, kept in _kernels(operation.type):
        if all(operation.get_attr(name) in allowed for name, allowed in constraints):
            return kept
    return None


@functools.cache
def _kernels(kind: str) -> list[tuple[list[tuple[str, list[tf.DType]]], frozenset[str]]]:
    """For each GPU kernel of a type of operations, the best first: its dtypes, and its arguments in host memory."""
    found = kernels.get_registered_kernels_for_op(kind).kernel
    usable = [each for each in found if each.device_type in ("GPU", "DEFAULT") and not each.label]
    usable.sort(key=lambda each: (each.device_type == "GPU", each.priority), reverse=True)
    return [
        (
            [(c.name, [tf.as_dtype(value) for value in c.allowed_values.list.type]) for c in each.constraint],
            frozenset(each.host_memory_arg),
        )
        for each in usable
    ]
