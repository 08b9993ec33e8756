"""Shapes after operations that move elements: reshapes, slices, pads, concatenations, lists."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .known_inputs import find_traced_shape, require, require_axes, require_fixed
from .size import Extent, Shape, at_most, divide, quotient, same_extent
from .size_arrays import Unknown, plain, product

Shapes = Sequence[Shape]


def _reshape(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, values = inputs[0].shape, inputs[1].constant
    if values is None:
        raise Unknown
    found = values.tolist()
    open_axes = [axis for axis, extent in enumerate(found) if extent == -1]
    if open_axes and shape is not None:
        rest = product(extent for extent in found if extent != -1)
        found[open_axes[0]] = quotient(product(shape), rest) if rest != 0 else None
    return [[None if extent == -1 else extent for extent in found]]


def _expand(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = [*require(inputs[0].shape)]
    shape.insert(int(require_fixed(inputs[1]).ravel()[0]) % (len(shape) + 1), 1)
    return [shape]


def find_squeezed_axes(op: tf.Operation, shape: Sequence[Extent]) -> list[int]:
    """Return the axes that a `Squeeze` drops; without a list, an extent that may be 1 for some batch is not known."""
    dims = [dim % len(shape) for dim in op.get_attr("squeeze_dims")]
    if not dims and not all(isinstance(extent, int) or at_most(2, extent) for extent in shape):
        raise Unknown
    return dims or [axis for axis, extent in enumerate(shape) if extent == 1]


def _squeeze(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = require(inputs[0].shape)
    axes = find_squeezed_axes(op, shape)
    return [[extent for axis, extent in enumerate(shape) if axis not in axes]]


def _transpose(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = require(inputs[0].shape)
    return [[shape[axis] for axis in require_axes(inputs[1], len(shape))]]


def _sum(*extents: Extent) -> Extent:
    return None if None in extents else sum(extents)  # type: ignore[arg-type]


def _pad(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, more = require(inputs[0].shape), inputs[1].constant
    if more is None:
        raise Unknown
    sign = -1 if op.type == "MirrorPadGrad" else 1
    return [
        [_sum(n, *(None if m is None else sign * m for m in row)) for n, row in zip(shape, more.tolist())]
    ]


def _tile(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, times = require(inputs[0].shape), inputs[1].constant
    if times is None:
        raise Unknown
    return [[product(pair) for pair in zip(shape, times.tolist())]]


def _concat(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shapes = [require(value.shape) for value in inputs[:-1]]
    (axis,) = require_axes(inputs[-1], len(shapes[0]))
    return [
        [
            _sum(*each) if n == axis else functools.reduce(same_extent, each)
            for n, each in enumerate(zip(*shapes))
        ]
    ]


def _pack(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shapes = [require(value.shape) for value in inputs]
    shape = [functools.reduce(same_extent, each) for each in zip(*shapes)]
    shape.insert(op.get_attr("axis") % (len(shape) + 1), len(inputs))
    return [shape]


def _unpack(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = [*require(inputs[0].shape)]
    del shape[op.get_attr("axis")]
    return [shape] * len(op.outputs)


def _split(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    data, where = (1, 0) if op.type == "Split" else (0, 2)
    shape, count = require(inputs[data].shape), len(op.outputs)
    (axis,) = require_axes(inputs[where], len(shape))
    sizes = [quotient(shape[axis], count)] * count
    if op.type == "SplitV":
        given = inputs[1].constant
        sizes = [None if given is None or given[n] == -1 else given[n] for n in range(count)]
        if sizes.count(None) == 1 and given is not None and None not in given.tolist():
            rest = _sum(*(size for size in sizes if size is not None))
            sizes[sizes.index(None)] = None if None in (shape[axis], rest) else shape[axis] - rest  # type: ignore[operator]
    return [[*shape[:axis], size, *shape[axis + 1 :]] for size in sizes]


def name_axes(op: tf.Operation, count: int, rank: int) -> tuple[list[int | None], dict[int, int]]:
    """Return the original axis for each axis of a strided slice (None: new), and the entry that names each original axis."""
    names = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    ellipsis, new, shrink = (op.get_attr(name) for name in names)
    axes: list[int | None] = []
    named: dict[int, int] = {}
    axis = 0
    ordinary = sum(1 for entry in range(count) if not (ellipsis | new) >> entry & 1)
    for entry in range(count):
        if ellipsis >> entry & 1:
            skipped = rank - ordinary
            axes += range(axis, axis + skipped)
            axis += skipped
        elif new >> entry & 1:
            axes.append(None)
        else:
            named[axis] = entry
            if not shrink >> entry & 1:
                axes.append(axis)
            axis += 1
    axes += range(axis, rank)
    return axes, named


def _clamp(end: Extent, extent: Extent) -> Extent:
    """Return where a slice begins or ends in an axis; a negative end counts from the last entry."""
    if end is None or extent is None:
        return None
    if at_most(end, -1):
        end = end + extent
    elif not at_most(0, end):
        return None
    if at_most(extent, end):
        return extent
    return 0 if at_most(end, 0) else end if at_most(0, end) and at_most(end, extent) else None


def slice_ends(
    op: tf.Operation, inputs: Sequence[Any], entry: int | None, extent: Extent
) -> tuple[Extent, Extent]:
    """Return the positions where an entry of a strided slice in steps of 1 begins and ends; None: the whole axis."""
    begin, end = (0, extent)
    for name, number in (("begin", 1), ("end", 2)):
        if entry is not None and not op.get_attr(f"{name}_mask") >> entry & 1:
            given = inputs[number].constant
            found = None if given is None else _clamp(given[entry], extent)
            begin, end = (found, end) if name == "begin" else (begin, found)
    return begin, end


def _length(begin: Extent, end: Extent) -> Extent:
    if begin is None or end is None:
        return None
    return end - begin if at_most(begin, end) else 0 if at_most(end, begin) else None


def _slice_strided(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, (count,) = require(inputs[0].shape), require(inputs[1].shape)
    if not isinstance(count, int):
        raise Unknown
    axes, named = name_axes(op, count, len(shape))
    steps = plain(inputs[3].constant)

    def length(axis: int) -> Extent:
        entry, extent = named.get(axis), shape[axis]
        step = 1 if entry is None else None if steps is None else int(steps[entry])
        if step == 1:
            return _length(*slice_ends(op, inputs, entry, extent))
        whole = entry is not None and (op.get_attr("begin_mask") & op.get_attr("end_mask")) >> entry & 1
        return extent if step == -1 and whole else None

    return [[1 if axis is None else length(axis) for axis in axes]]


def _slice(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, begin, size = require(inputs[0].shape), inputs[1].constant, inputs[2].constant
    if size is None:
        raise Unknown
    begins = [None] * len(shape) if begin is None else begin.tolist()
    rest = [None if None in (n, b) else n - b for n, b in zip(shape, begins)]  # type: ignore[operator]
    return [[r if n == -1 else n for r, n in zip(rest, size.tolist())]]


def _range(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    first, limit, step = (None if v.constant is None else v.constant.item() for v in inputs)
    if None in (first, limit) or not isinstance(step, int) or step == 0:
        raise Unknown
    length = _length(first, limit) if step > 0 else _length(limit, first)
    whole, rest = divide(length, abs(step))
    return [[None if whole is None else whole + (rest != 0)]]  # type: ignore[operator]


def _blocks_of_batch(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    first, times = require(inputs[0].shape)[0], int(require_fixed(inputs[1]).prod())
    first = product([first, times]) if op.type == "SpaceToBatchND" else quotient(first, times)
    return [[first, *require(find_traced_shape(op, inputs))[1:]]]


def _element(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    """Return the elements of a list, which is the first input."""
    if inputs[0].dtype != tf.variant or inputs[0].label.kind == "empty list":
        raise Unknown
    shape = require(inputs[0].shape)
    if op.type == "TensorListPopBack":
        return [None, shape[1:]]
    if op.type == "TensorListGetItem":
        return [shape[1:]]
    if op.type == "TensorListGather":
        return [[*require(inputs[1].shape), *shape[1:]]]
    return [[None, *shape[2:]] if op.type == "TensorListConcatV2" else shape]


MOVED: dict[str, Callable[..., Shapes]] = {
    "Reshape": _reshape,
    "ExpandDims": _expand,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Pad PadV2 MirrorPad MirrorPadGrad": _pad,
    "Tile": _tile,
    "ConcatV2": _concat,
    "Pack": _pack,
    "Unpack": _unpack,
    "Split SplitV": _split,
    "StridedSlice": _slice_strided,
    "Slice": _slice,
    "Range": _range,
    "SpaceToBatchND BatchToSpaceND": _blocks_of_batch,
    "TensorListPopBack TensorListGetItem TensorListStack TensorListGather TensorListConcatV2": _element,
}
