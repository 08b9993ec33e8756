"""Positions that are computed from the batch size: each replica can count from its own first sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..program import multiple_of_batch
from .view import View

_SAME_NUMBERS = ("Identity", "Cast", "StopGradient", "Reshape", "ExpandDims")


def origin(tensor: Any) -> Any:
    """The tensor that has the same numbers in the same order, before changes of shape or dtype."""
    while tensor.op.type in _SAME_NUMBERS:
        tensor = tensor.op.inputs[0]
    return tensor


def _multiple(view: View, tensor: Any) -> tuple[int, int] | None:
    """For a tensor `step * [0, 1, ..., n - 1]`, n a multiple of the batch: n of the first of `PROBES`, and the step."""
    tensor = origin(tensor)
    step = 1
    if tensor.op.type == "Mul":
        for factor, counted in (tensor.op.inputs, reversed(tensor.op.inputs)):
            value = view.constant_of(factor)
            if value is None or value[0].ndim:
                continue
            if value[0] == value[1] and origin(counted).op.type == "Range":
                step, tensor = int(value[0]), origin(counted)
                break
    if tensor.op.type != "Range":
        return None
    first, limit, delta = (view.constant_of(each) for each in tensor.op.inputs)
    if first is None or limit is None or delta is None:
        return None
    counts = not np.any(first) and np.all(np.equal(delta, 1))
    return (int(limit[0]), step) if counts and multiple_of_batch(limit) is not None else None


def counts_samples(view: View, tensor: Any, extents: tuple[Any, ...]) -> bool:
    """Whether a tensor is `[0, 1, ..., n - 1]`, n being these extents of an axis with samples."""
    return _multiple(view, tensor) == (extents[0], 1) and multiple_of_batch(extents) is not None


def first_column_counts_samples(view: View, number: int, extents: tuple[Any, ...]) -> bool:
    """Whether the first column of an input, a matrix, is `[0, 1, ..., n - 1]`."""
    packed = view.op.inputs[number]
    while packed.op.type in ("Identity", "Cast"):
        packed = packed.op.inputs[0]
    op = packed.op
    if view.rank(number) != 2 or op.type not in ("Pack", "ConcatV2"):
        return False
    columns = view.value_of(op.inputs[0])
    if columns is None or columns.shapes[0] is None or columns.shapes[0][0] != extents[0]:
        return False
    if op.type == "ConcatV2":
        axis = view.constant_of(op.inputs[len(op.inputs) - 1])
        if axis is None or int(axis[0]) % 2 != 1 or columns.shapes[0][1:] != [1]:
            return False
    elif op.get_attr("axis") % 2 != 1:
        return False
    return counts_samples(view, op.inputs[0], extents)


def are_in_parts_of_samples(view: View, number: int, extents: tuple[Any, ...]) -> bool:
    """Whether each sample has a part of these extents that contains the positions of its own entries.

    This holds in the backward pass of a gather with `batch_dims`: `k * [0, ..., n - 1]` is added to positions in `range(k)`.
    """
    added = origin(view.op.inputs[number])
    if added.op.type != "AddV2":
        return False
    for offset, within in (added.op.inputs, reversed(added.op.inputs)):
        found = _multiple(view, offset)
        if found is None or found[0] * found[1] != extents[0] or multiple_of_batch(extents) is None:
            continue
        if any(use.type == "GatherV2" and use.get_attr("batch_dims") and use.inputs[1] is within
               for use in within.consumers()):  # fmt: skip
            return True
    return False
