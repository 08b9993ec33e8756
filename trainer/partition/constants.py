"""Constant folding of small integer tensors of a step, sizes above all, as far as shapes determine them.

NumPy's functions replace TensorFlow's; results of other operations are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_graphs.one_device import constant_of
from .program import PROBES

MOST_ELEMENTS = 64
_INTEGERS = (tf.int32, tf.int64, tf.bool, tf.uint8, tf.int8, tf.int16)


def constant(
    op: tf.Operation, number: int, inputs: Sequence[np.ndarray | None], shapes: Sequence[Any]
) -> Any:
    """The value of output `number` of an operation, for one size of the batch; None: not known.

    Args:
        op: the operation.
        number: of its output.
        inputs: the known values of its inputs.
        shapes: of its inputs; lists of int or None, or None.
    """
    tensor = op.outputs[number]
    if tensor.dtype not in _INTEGERS or tensor.shape.rank is None or tensor.shape.rank > 2:
        return None
    if op.type == "Const":
        return constant_of(op) if (tensor.shape.num_elements() or 0) <= MOST_ELEMENTS else None
    if op.type in ("Shape", "ShapeN", "Size", "Rank"):
        shape = shapes[number if op.type == "ShapeN" else 0]
        if shape is None or (op.type != "Rank" and None in shape):
            return None
        found: Any = {"Size": lambda: np.prod(shape, dtype=np.int64), "Rank": lambda: len(shape)}
        return np.asarray(found.get(op.type, lambda: shape)(), np.int64)
    compute = COMPUTED.get(op.type)
    if compute is None or any(value is None for value in inputs):
        return None
    try:
        result = compute(op, *inputs)
    except (ValueError, IndexError, ZeroDivisionError, TypeError):
        return None
    if result is None:
        return None
    result = np.asarray(result[number] if isinstance(result, tuple) else result)
    return result if result.size <= MOST_ELEMENTS else None


def _strided(op: Any, values: Any, begin: Any, end: Any, strides: Any) -> Any:
    masks = {name: op.get_attr(name + "_mask") for name in ("begin", "end", "shrink_axis", "new_axis")}
    if masks["new_axis"] or op.get_attr("ellipsis_mask") or len(begin) != 1:
        raise ValueError
    if masks["shrink_axis"] & 1:
        return values[int(begin[0])]
    first = None if masks["begin"] & 1 else int(begin[0])
    last = None if masks["end"] & 1 else int(end[0])
    return values[first : last : int(strides[0])]


def _gradient_axes(op: Any, one: Any, other: Any) -> tuple[np.ndarray, np.ndarray]:
    if np.array_equal(one, other):  # then TensorFlow does not sum over axes of extent 1 either
        return np.array([], np.int64), np.array([], np.int64)
    rank = max(len(one), len(other))
    a, b = [1] * (rank - len(one)) + list(one), [1] * (rank - len(other)) + list(other)
    pairs = list(enumerate(zip(a, b)))
    summed_a = [axis for axis, (x, y) in pairs if x == 1 and (y != 1 or axis < rank - len(one) or x == y)]
    summed_b = [axis for axis, (x, y) in pairs if y == 1 and (x != 1 or axis < rank - len(other) or x == y)]
    return np.array(summed_a, np.int64), np.array(summed_b, np.int64)


def _reduced(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda op, x, axes: function(
        x, axis=tuple(np.ravel(axes).astype(int)) if np.ndim(x) else None, keepdims=op.get_attr("keep_dims")
    )


def _concatenated(op: Any, *inputs: Any) -> Any:
    return np.concatenate(inputs[:-1], int(inputs[-1]))


COMPUTED: dict[str, Callable[..., Any]] = {
    "Identity": lambda op, x: x,
    "StopGradient": lambda op, x: x,
    "Cast": lambda op, x: np.asarray(x).astype(np.int64 if op.outputs[0].dtype != tf.bool else bool),
    "Pack": lambda op, *xs: np.stack(xs, op.get_attr("axis")),
    "Unpack": lambda op, x: tuple(np.moveaxis(x, op.get_attr("axis"), 0)),
    "ConcatV2": _concatenated,
    "StridedSlice": _strided,
    "Slice": lambda op, x, begin, size: x[
        tuple(slice(int(a), None if b < 0 else int(a + b)) for a, b in zip(begin, size))
    ],
    "GatherV2": lambda op, x, index, axis: (
        None if op.get_attr("batch_dims") else np.take(x, index.astype(int), axis=int(axis))
    ),
    "Mul": lambda op, x, y: x * y,
    "AddV2": lambda op, x, y: x + y,
    "Sub": lambda op, x, y: x - y,
    "Neg": lambda op, x: -x,
    "FloorDiv": lambda op, x, y: x // y,
    "FloorMod": lambda op, x, y: x % y,
    "Maximum": lambda op, x, y: np.maximum(x, y),
    "Minimum": lambda op, x, y: np.minimum(x, y),
    "Equal": lambda op, x, y: np.equal(x, y),
    "Less": lambda op, x, y: np.less(x, y),
    "Greater": lambda op, x, y: np.greater(x, y),
    "SelectV2": lambda op, c, x, y: np.where(c, x, y),
    "Prod": _reduced(np.prod),
    "Sum": _reduced(np.sum),
    "Range": lambda op, first, last, step: (
        np.arange(first, last, step) if last - first <= MOST_ELEMENTS * step else None
    ),
    "Fill": lambda op, shape, value: (
        np.full(shape.astype(int), value) if np.prod(shape) <= MOST_ELEMENTS else None
    ),
    "ExpandDims": lambda op, x, axis: np.expand_dims(x, int(axis)),
    "Squeeze": lambda op, x: np.squeeze(x),
    "Reshape": lambda op, x, shape: np.reshape(x, shape.astype(int)),
    "ReverseV2": lambda op, x, axes: np.flip(x, tuple(axes.astype(int))),
    "InvertPermutation": lambda op, x: np.argsort(x),
    "BroadcastGradientArgs": _gradient_axes,
    "BroadcastArgs": lambda op, x, y: np.array(
        np.broadcast_shapes(tuple(x.astype(int)), tuple(y.astype(int)))
    ),
    "ConcatOffset": lambda op, axis, *shapes: _offsets(int(axis), shapes),
}


def _offsets(axis: int, shapes: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    found, offset = [], 0
    for shape in shapes:
        start = np.zeros(len(shape), np.int64)
        start[axis] = offset
        found.append(start)
        offset += int(shape[axis])
    return tuple(found)


Pair = tuple[np.ndarray, np.ndarray]
"""A value for each of `PROBES`."""

COMPARISONS = ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual")
_EXTREMES = ("Minimum", "Maximum")
_DIVISIONS = ("FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod")


def depends_on_sizes(inputs: Sequence[Pair | None]) -> bool:
    """Whether some known input differs between the sizes of `PROBES`."""
    return any(pair is not None and not np.array_equal(*pair) for pair in inputs)


def holds_for_all_sizes(kind: str, inputs: Sequence[Pair | None], one_size: bool) -> bool:
    """Whether an operation on sizes is the same function of the size of the batch for every size, not for `PROBES` alone.

    The remainder of a division by 2 is 0 for both of `PROBES`, and both are larger than 64. For other types of operations
    the result is True.

    Args:
        kind: the type of the operation.
        inputs: the known values of its inputs; they depend on the size of the batch.
        one_size: whether all arrays certainly have the same number of samples.
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
