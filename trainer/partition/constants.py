"""Constant folding of small integer tensors of a step, sizes above all, as far as shapes determine them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_graphs.one_device import evaluated
from .program import PROBES, Shape

Pair = tuple[np.ndarray, np.ndarray]
"""A value for each of `PROBES`."""

MOST_ELEMENTS = 64
_INTEGERS = (tf.int32, tf.int64, tf.bool, tf.uint8, tf.int8, tf.int16)
_NAMES = """
AddV2 BroadcastArgs BroadcastGradientArgs Cast ConcatOffset ConcatV2 Equal ExpandDims Fill FloorDiv FloorMod GatherV2 Greater
Identity InvertPermutation Less Maximum Minimum Mul Neg Pack Prod Range Reshape ReverseV2 SelectV2 Slice Squeeze StopGradient
StridedSlice Sub Sum Unpack
"""
_COMPUTED = frozenset(_NAMES.split())


def constant(
    op: tf.Operation, number: int, inputs: Sequence[Pair | None], shapes: Sequence[tuple[Shape, Shape]]
) -> Pair | None:
    """Return the value of output `number` of an operation; None where its inputs do not determine it, or it is large."""
    tensor = op.outputs[number]
    if tensor.dtype not in _INTEGERS or tensor.shape.rank is None or tensor.shape.rank > 2:
        return None
    if op.type == "Const":
        if (tensor.shape.num_elements() or 0) > MOST_ELEMENTS:
            return None
        found = tf.make_ndarray(op.get_attr("value"))
        return found, found
    if op.type in ("Shape", "ShapeN", "Size", "Rank"):
        one, other = (_size(op.type, shape) for shape in shapes[number if op.type == "ShapeN" else 0])
    elif op.type in _COMPUTED and None not in inputs:
        given = [[pair[probe] for pair in inputs if pair is not None] for probe in (0, 1)]
        same = all(map(np.array_equal, *given))
        one = _computed(op, number, given[0])
        other = one if same else _computed(op, number, given[1])
    else:
        return None
    return None if one is None or other is None else (one, other)


def _size(kind: str, shape: Shape) -> np.ndarray | None:
    if shape is None or (kind != "Rank" and None in shape):
        return None
    found: Any = len(shape) if kind == "Rank" else np.prod(shape, dtype=np.int64) if kind == "Size" else shape  # type: ignore[arg-type]
    return np.asarray(found, np.int64)


def _computed(op: tf.Operation, number: int, inputs: list[np.ndarray]) -> np.ndarray | None:
    is_large = (op.type == "Fill" and np.prod(inputs[0]) > MOST_ELEMENTS) or (
        op.type == "Range" and inputs[1] - inputs[0] > MOST_ELEMENTS * inputs[2]
    )
    found = None if is_large else evaluated(op, inputs)
    return found[number] if found is not None and found[number].size <= MOST_ELEMENTS else None


COMPARISONS = ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual")
_EXTREMES = ("Minimum", "Maximum")
_DIVISIONS = ("FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod")


def depends_on_sizes(inputs: Sequence[Pair | None]) -> bool:
    """Whether some known input differs between the sizes of `PROBES`."""
    return any(pair is not None and not np.array_equal(*pair) for pair in inputs)


def holds_for_all_sizes(kind: str, inputs: Sequence[Pair | None], one_size: bool) -> bool:
    """Tell whether an operation on sizes is the same function of the batch size for every size, not for `PROBES` alone.

    The remainder of a division by 2 is 0 for both of `PROBES`, and both are larger than 64. For other types of operations
    the result is True. `one_size`: whether all arrays certainly have the same number of samples.
    """
    if kind in COMPARISONS:  # a size is compared with itself: steps check that two arrays have one size
        known = [pair for pair in inputs if pair is not None]
        return one_size and len(known) == 2 and all(map(np.array_equal, *known))
    if kind == "SelectV2":
        return inputs[0] is not None or None in inputs[1:]
    if kind not in (*_EXTREMES, *_DIVISIONS) or any(pair is None for pair in inputs):
        return True
    (a0, a1), (b0, b1) = [tuple(map(np.asarray, pair)) for pair in inputs if pair is not None]
    if kind in _EXTREMES:
        above, below = np.maximum(a0, b0), np.minimum(a0, b0)
        constant_one = np.where(a0 == a1, a0, np.where(b0 == b1, b0, 1))
        both_fixed = (a0 == a1) & (b0 == b1)
        return bool(np.all(both_fixed | (constant_one <= 1) | (above == below)))
    slope, rest = np.divmod(a1 - a0, PROBES[1] - PROBES[0])
    start = a0 - slope * PROBES[0]
    divisor = np.where(b0 == 0, 1, b0)
    exact = (slope % divisor == 0) & (rest == 0)
    if kind in ("FloorDiv", "TruncateDiv"):
        exact &= start % divisor == 0
    multiples = (a0 % divisor == 0) & (a1 % np.where(b1 == 0, 1, b1) == 0)
    return bool(np.all(np.where(b0 == b1, exact | (a0 == a1), multiples)))


def rounds_sizes(op: tf.Operation) -> bool:
    """Whether an operation may round a number that was computed from the size of the batch, as in a share of it."""
    if op.type != "Cast" or not op.inputs[0].dtype.is_floating or not op.outputs[0].dtype.is_integer:
        return False
    elements = op.outputs[0].shape.num_elements()
    return elements is not None and elements <= MOST_ELEMENTS
