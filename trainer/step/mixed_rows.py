"""Operations that make a statistic of the rows that a layer is given, as `BatchNormalization` does: told by the graph.

Each replica has its own rows, and so its own statistic, which is not that of one device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ...compat.edges import holds_functions, number_of
from ...compat.pruning import operations_behind

# What may bring rows together without a number that has none; of products only those of two tensors with rows.
_CUT = (
    "GatherNd",
    "GatherV2",
    "Split",
    "SplitV",
    "StridedSlice",
    "TopKV2",
    "Unique",
    "UniqueV2",
    "Unpack",
    "Where",
)
_JOINED = ("ConcatV2", "Pack", "ScatterNd", "TensorScatterAdd", "TensorScatterUpdate", "Tile")
_MOVED = ("BatchToSpaceND", "RandomShuffle", "Reshape", "ReverseV2", "Roll", "SpaceToBatchND", "Transpose")
_SUMMED = ("Cumprod", "Cumsum")
_MAY_MIX = frozenset([*_CUT, *_JOINED, *_MOVED, *_SUMMED])
# How the names of sums over the rows of a number begin.
_BY_NUMBER = ("Segment", "SparseSegment", "UnsortedSegment")
_REDUCED = ("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum")
_COMPARED = ("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual")
_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul")
_SIZES = ("Shape", "ShapeN", "Size", "Rank", "VariableShape")


class Mixed(NamedTuple):
    """Operations behind outputs that bring rows together.

    Attributes:
        statistics: those that make floating-point numbers without rows of tensors with rows, to be computed with, or sums of
            the rows up to each.
        maybe: those that may bring rows together in another manner, or make numbers that are only compared.
    """

    statistics: list[tf.Operation]
    maybe: list[tf.Operation]


def mixed_in(outputs: Sequence[tf.Tensor], rows: Collection[tf.Tensor], same: Collection[int]) -> Mixed:
    """What brings rows together, for outputs with rows.

    Args:
        outputs: of a model, in a graph in which the rows of a batch are not known.
        rows: the tensors that hold the rows of the batch.
        same: ids of tensors that are the same on all replicas; what is behind them is left out.
    """
    has_rows = {id(each) for each in rows}
    depend, found = set[Any](), Mixed([], [])
    with_rows = [
        each for each in outputs if isinstance(each, tf.Tensor) and not each.shape.is_fully_defined()
    ]
    behind = operations_behind(with_rows, same)
    compared = {id(each) for op in behind if op.type in _COMPARED for each in op.outputs}
    computed = operations_behind(with_rows, {*same, *compared})
    for op in sorted(behind, key=number_of):
        given = [each for each in op.inputs if id(each) in has_rows or each.op in depend]
        given = [each for each in given if id(each) not in same]
        if not given or op.type in _SIZES:
            continue
        depend.add(op)
        of_rows = [each for each in given if each.dtype == tf.variant or not each.shape.is_fully_defined()]
        if of_rows and _sums_up_rows(op):  # places in a queue, say, of which only the limit is compared
            found.statistics.append(op)
        elif of_rows and not holds_functions(op) and _has_numbers_without_rows(op):
            (found.statistics if op in computed else found.maybe).append(op)
        elif of_rows and _may_mix(op, of_rows):
            found.maybe.append(op)
    return found


def _sums_up_rows(op: tf.Operation) -> bool:
    """Whether each row is given a sum of those before it."""
    if op.type not in _SUMMED or not op.inputs[0].shape.rank or op.inputs[0].shape[0] is not None:
        return False
    return tf.get_static_value(op.inputs[1]) in (0, -op.inputs[0].shape.rank)


def _may_mix(op: tf.Operation, of_rows: Sequence[tf.Tensor]) -> bool:
    if op.type in _REDUCED:
        axes = tf.get_static_value(op.inputs[1])
        return axes is None or bool({0, -(op.inputs[0].shape.rank or 0)} & {*axes.ravel().tolist()})
    if op.type in _PRODUCTS:
        return len(of_rows) > 1
    return op.type in _MAY_MIX or op.type.startswith(_BY_NUMBER) or holds_functions(op)


def _has_numbers_without_rows(op: tf.Operation) -> bool:
    return bool(op.outputs) and all(
        each.shape.is_fully_defined() and each.dtype.is_floating for each in op.outputs
    )
