"""Operations that make a statistic of the rows that a layer is given, as `BatchNormalization` does: told by the graph.

Each replica has its own rows, and so its own statistic, which is not that of one device.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from ...compat.edges import holds_functions, number_of
from ...compat.pruning import operations_behind

_SIZES = ("Shape", "ShapeN", "Size", "Rank", "VariableShape")


def statistics_in(
    outputs: Sequence[tf.Tensor], rows: Collection[tf.Tensor], same: Collection[int]
) -> list[tf.Operation]:
    """The operations that make floating-point numbers without rows of tensors with rows, for outputs with rows.

    Args:
        outputs: of a model, in a graph in which the rows of a batch are not known.
        rows: the tensors that hold the rows of the batch.
        same: ids of tensors that are the same on all replicas; what is behind them is left out.
    """
    has_rows = {id(each) for each in rows}
    depend, found = set[Any](), list[tf.Operation]()
    with_rows = [
        each for each in outputs if isinstance(each, tf.Tensor) and not each.shape.is_fully_defined()
    ]
    for op in sorted(operations_behind(with_rows, same), key=number_of):
        given = [each for each in op.inputs if id(each) in has_rows or each.op in depend]
        given = [each for each in given if id(each) not in same]
        if not given or op.type in _SIZES:
            continue
        depend.add(op)
        of_rows = any(not each.shape.is_fully_defined() for each in given)
        if of_rows and not holds_functions(op) and _has_numbers_without_rows(op):
            found.append(op)
    return found


def _has_numbers_without_rows(op: tf.Operation) -> bool:
    return bool(op.outputs) and all(
        each.shape.is_fully_defined() and each.dtype.is_floating for each in op.outputs
    )
