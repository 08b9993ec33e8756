"""The values of small integer tensors of a step as sizes: a rule for each type of operation, unknown without one."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .known_inputs import require_fixed
from .size import Size, at_most, divide, equal, if_known, is_open, largest, never_negative, smallest
from .size_arrays import Unknown, align, as_sizes, broadcast_axes, product

MOST_ELEMENTS = 64
_TRACKED = (tf.int32, tf.int64, tf.bool)  # other integers may wrap around
Values = list[np.ndarray | None]


def find_value(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray | None:
    """Return the value of output `number` of an operation, for every batch; None where it is not known, or it is large.

    `inputs` has the `Value` of each input. The shapes and values of all tensors are those of a single device.
    """
    tensor = op.outputs[number]
    if tensor.dtype not in _TRACKED or op.type not in VALUES:
        return None
    if tensor.shape.rank is not None and (tensor.shape.num_elements() or 0) > MOST_ELEMENTS:
        return None
    try:
        found = VALUES[op.type](op, number, inputs)
    except (Unknown, IndexError, ValueError):  # NumPy's errors of what fails on a single device, too
        return None
    if (
        found is None
        or found.size > MOST_ELEMENTS
        or (found.size and all(each is None for each in found.flat))
    ):
        return None
    if not _fits(found, tensor.dtype):
        return None
    return found


def _fits(values: np.ndarray, dtype: tf.DType) -> bool:
    numbers = [
        n for v in values.flat for n in (v.terms.values() if isinstance(v, Size) else [v]) if n is not None
    ]
    return dtype == tf.bool or all(dtype.min <= n <= dtype.max for n in numbers)


def _value(value: Any) -> np.ndarray:
    """Return the value of an input; one that is not known has unknown elements where its shape is."""
    if value.constant is not None:
        return value.constant
    shape = value.shape
    if shape is None or not all(isinstance(extent, int) for extent in shape) or not value.dtype.is_integer:
        raise Unknown
    if math.prod(shape) > MOST_ELEMENTS:
        raise Unknown
    return as_sizes(np.full(shape, None))


def _each(fn: Callable[..., Any], count: int = 2) -> Callable[..., np.ndarray]:
    """Return a rule for an operation on each element of `count` inputs."""
    numpy = np.frompyfunc(fn, count, 1)

    def rule(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
        return as_sizes(numpy(*map(_value, inputs)))

    return rule


def _move_elements(fn: Callable[..., Any], data: int = 1) -> Callable[..., np.ndarray]:
    """Return a rule for an operation that moves elements of its first `data` inputs; the others are fixed."""

    def rule(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
        return as_sizes(fn(op, *map(_value, inputs[:data]), *map(require_fixed, inputs[data:])))

    return rule


def _constant(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray | None:
    if (op.outputs[0].shape.num_elements() or 0) > MOST_ELEMENTS:
        return None
    return as_sizes(tf.make_ndarray(op.get_attr("value")))


def _shape(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray | None:
    shape = inputs[number].shape
    if shape is None:
        return None
    found: Any = len(shape) if op.type == "Rank" else product(shape) if op.type == "Size" else shape
    return as_sizes(found)


def _cast(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
    source, target = op.inputs[0].dtype, op.outputs[0].dtype
    if source not in _TRACKED:
        raise Unknown
    found = _value(inputs[0])
    if target != tf.bool:
        return as_sizes(np.frompyfunc(if_known(lambda x: x + 0), 1, 1)(found))
    return as_sizes(np.frompyfunc(lambda x: _not(equal(x, 0)), 1, 1)(found))


def _not(known: bool | None) -> bool | None:
    return None if known is None else not known


def _both(one: bool | None, other: bool | None) -> bool | None:
    return False if one is False or other is False else None if None in (one, other) else True


def _either(one: bool | None, other: bool | None) -> bool | None:
    return _not(_both(_not(one), _not(other)))


def _truncate(part: int) -> Callable[[Any, Any], Any]:
    """Return the quotient or the remainder of a division that rounds towards 0; the signs decide whether it rounds down."""

    def fn(one: Any, other: Any) -> Any:
        down = None not in (one, other) and never_negative(one) and never_negative(other)
        quotient, rest = divide(one, other)
        return (quotient, rest)[part] if down or rest == 0 else None

    return fn


def _select(condition: bool | None, one: Any, other: Any) -> Any:
    if condition is None:
        return one if one is not None and one == other else None
    return one if condition else other


def _slice_strided(op: tf.Operation, data: np.ndarray, *ends: np.ndarray) -> np.ndarray:
    begin, end, step = ends
    masks = [op.get_attr(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis", "begin", "end")]
    entries: list[Any] = []
    for n in range(len(begin)):
        ellipsis, new, shrink, from_begin, to_end = (mask >> n & 1 for mask in masks)
        first, last = None if from_begin else int(begin[n]), None if to_end else int(end[n])
        plain_slice = int(begin[n]) if shrink else slice(first, last, int(step[n]))
        entries.append(Ellipsis if ellipsis else np.newaxis if new else plain_slice)
    return as_sizes(data[tuple(entries)])


def _slice(op: tf.Operation, data: np.ndarray, begin: np.ndarray, size: np.ndarray) -> np.ndarray:
    return data[tuple(slice(b, None if s < 0 else b + s) for b, s in zip(begin.tolist(), size.tolist()))]


def _gather(op: tf.Operation, data: np.ndarray, indices: np.ndarray, axis: np.ndarray) -> np.ndarray:
    if op.get_attr("batch_dims") or np.any(indices < 0):
        raise Unknown
    return np.take(data, indices.astype(np.int64), int(axis))


def _reduce(fn: Callable[[Any, Any], Any], start: Any) -> Callable[..., np.ndarray]:
    def rule(op: tf.Operation, data: np.ndarray, axes: np.ndarray) -> np.ndarray:
        if data.ndim > 1 and len(np.ravel(axes)) != data.ndim:
            raise Unknown
        if not np.size(axes):
            return data
        if not data.size and start is None:
            raise Unknown
        found = functools.reduce(fn, data.ravel(), *([] if start is None else [start]))
        return as_sizes(np.full([1] * data.ndim, found) if op.get_attr("keep_dims") else found)

    return _move_elements(rule)


def _range(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
    return as_sizes(np.arange(*(int(require_fixed(value)) for value in inputs)).tolist())


def _fill(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
    extents = require_fixed(inputs[0])
    if np.prod(extents) > MOST_ELEMENTS:
        raise Unknown
    return as_sizes(np.full(extents, _value(inputs[1]).item()))


def _concat_offset(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
    axis, found = int(require_fixed(inputs[0])), as_sizes(np.zeros(_value(inputs[1]).shape, int).tolist())
    for value in inputs[1 : number + 1]:
        found[axis] = _add(found[axis], _value(value)[axis])
    return found


def _split(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
    if op.type == "Split":
        return as_sizes(np.split(_value(inputs[1]), len(op.outputs), int(require_fixed(inputs[0])))[number])
    ends = np.cumsum(require_fixed(inputs[1]))
    if np.any(require_fixed(inputs[1]) < 0):
        raise Unknown
    return as_sizes(np.split(_value(inputs[0]), ends[:-1], int(require_fixed(inputs[2])))[number])


def _stitch(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
    half = len(inputs) // 2
    parts = [(int(n), v) for at, values in zip(inputs[:half], inputs[half:])
             for n, v in zip(require_fixed(at).ravel(), _value(values).ravel())]  # fmt: skip
    found = dict(parts)
    return as_sizes([found[n] for n in range(len(found))])


def _gradient_axes(op: tf.Operation, number: int, inputs: Sequence[Any]) -> np.ndarray:
    sums = [pair[number] for pair in broadcast_axes([_value(value).tolist() for value in inputs])]
    if None in sums:
        raise Unknown
    return as_sizes([axis for axis, is_summed in enumerate(sums) if is_summed])


def find_sums(op: tf.Operation, number: int, inputs: Sequence[Any]) -> tuple[bool | None, ...]:
    """Return for each axis of a broadcast gradient whether it is summed, where plain integers decide it; () elsewhere."""
    shapes = [value.constant for value in inputs if value.constant is not None]
    if op.type != "BroadcastGradientArgs" or len(shapes) < 2:
        return ()
    sums = zip(align(shapes), broadcast_axes(shapes))
    return tuple(None if any(map(is_open, extents)) else pair[number] for extents, pair in sums)


_add, _sub, _mul = (if_known(fn) for fn in (operator.add, operator.sub, operator.mul))
_SAME = "Identity StopGradient PreventGradient Snapshot"
_RULES: dict[str, Callable[..., Any]] = {
    _SAME: _move_elements(lambda op, x: x),
    "Const": _constant,
    "Shape ShapeN Size Rank": _shape,
    "Cast": _cast,
    "AddV2 Add": _each(_add),
    "Sub": _each(_sub),
    "Mul": _each(lambda x, y: 0 if 0 in (x, y) else _mul(x, y)),
    "Neg": _each(lambda x: _sub(0, x), 1),
    "FloorDiv": _each(lambda x, y: divide(x, y)[0]),
    "FloorMod": _each(lambda x, y: divide(x, y)[1]),
    "TruncateDiv Div": _each(_truncate(0)),
    "TruncateMod Mod": _each(_truncate(1)),
    "Maximum": _each(largest),
    "Minimum": _each(smallest),
    "Equal": _each(equal),
    "NotEqual": _each(lambda x, y: _not(equal(x, y))),
    "LessEqual": _each(at_most),
    "GreaterEqual": _each(lambda x, y: at_most(y, x)),
    "Less": _each(lambda x, y: _not(at_most(y, x))),
    "Greater": _each(lambda x, y: _not(at_most(x, y))),
    "LogicalNot": _each(_not, 1),
    "LogicalAnd": _each(_both),
    "LogicalOr": _each(_either),
    "SelectV2": _each(_select, 3),
    "Reshape": _move_elements(lambda op, x, shape: x.reshape(shape)),
    "ExpandDims": _move_elements(lambda op, x, axis: np.expand_dims(x, int(axis.ravel()[0]))),
    "Squeeze": _move_elements(lambda op, x: np.squeeze(x, tuple(op.get_attr("squeeze_dims")) or None)),
    "Transpose": _move_elements(lambda op, x, order: np.transpose(x, order)),
    "ReverseV2": _move_elements(lambda op, x, axes: np.flip(x, tuple(axes.tolist()))),
    "StridedSlice": _move_elements(_slice_strided),
    "Slice": _move_elements(_slice),
    "GatherV2": _move_elements(_gather),
    "Sum": _reduce(_add, 0),
    "Prod": _reduce(lambda x, y: product([x, y]), 1),
    "Max": _reduce(largest, None),
    "Min": _reduce(smallest, None),
    "All": _reduce(_both, True),
    "Any": _reduce(_either, False),
    "Range": _range,
    "Fill": _fill,
    "Pack": lambda op, number, inputs: as_sizes(np.stack([*map(_value, inputs)], op.get_attr("axis"))),
    "ConcatV2": lambda op, number, inputs: as_sizes(
        np.concatenate([*map(_value, inputs[:-1])], int(require_fixed(inputs[-1])))
    ),
    "Unpack": lambda op, number, inputs: as_sizes(
        np.moveaxis(_value(inputs[0]), op.get_attr("axis"), 0)[number]
    ),
    "Split SplitV": _split,
    "ConcatOffset": _concat_offset,
    "DynamicStitch": _stitch,
    "InvertPermutation": _move_elements(lambda op, x: np.argsort(x), 0),
    "BroadcastGradientArgs": _gradient_axes,
}
VALUES = {name: rule for names, rule in _RULES.items() for name in names.split()}
"""By the type of an operation: `fn(op, number, inputs)`, the value of output `number`, or None."""
