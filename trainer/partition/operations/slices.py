"""Slices and ranges. Along the axis of the samples a slice takes the whole axis, or whole blocks."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..labels import OPEN, PARTIAL_SUM, REPLICATED, Ragged, label_sharded, sizes
from ..sizes.positions import Progression, is_range
from ..sizes.size import Extent, Length, Shape, Size, at_most, divide
from ..sizes.size_arrays import Unknown, as_sizes, extents_of, plain
from .call import Call, Ruling, Shapes, View, name_axes, require, shape_in
from .number_rules import move_elements
from .row import add_rows
from .terms import Terms
from .value_places import label_some_offsets

_MASKS = "ellipsis", "new_axis", "shrink_axis", "begin", "end"


def _place_axes(call: Call, rank: int) -> tuple[list[int | None], dict[int, int]]:
    """Return the original axis for each axis of a strided slice (None: new), and the entry that names each original axis."""
    count = call.shape(1)[0]
    if not isinstance(count, int):
        raise Unknown
    ellipsis, new, shrink = (call.attr(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis"))
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


def _find_ends(call: Call, entry: int | None, extent: Extent) -> list[Extent]:
    """Return the positions where an entry of a strided slice in steps of 1 begins and ends; None: the whole axis."""
    found: list[Extent] = [0, extent]
    for number, name in enumerate(("begin_mask", "end_mask")):
        if entry is not None and not call.attr(name) >> entry & 1:
            given = call.values[number + 1].constant
            found[number] = None if given is None else _clamp(given[entry], extent)
    return found


def _length(begin: Extent, end: Extent) -> Extent:
    if begin is None or end is None:
        return None
    return end - begin if at_most(begin, end) else 0 if at_most(end, begin) else None


def _find_strided(call: Call) -> Terms:
    """Return the terms of a strided slice, or of its gradient: in steps of 1, it cuts axes that it does not take whole."""
    graded = call.type == "StridedSliceGrad"
    shape = require(extents_of(call.constant(0))) if graded else call.shape()
    steps, (axes, named) = plain(call.values[3].constant), _place_axes(call, len(shape))
    names, more = name_axes(len(shape)), name_axes(len(shape), len(shape))
    part, mixed, entries = "", "", dict[int, str]()
    extents, starts = dict[str, Extent](), dict[int, Extent]()
    for axis in axes:
        if axis is None:
            part += "1"
            continue
        entry, extent = named.get(axis), shape[axis]
        step = 1 if entry is None else None if steps is None else int(steps[entry])
        whole = entry is None or (call.attr("begin_mask") & call.attr("end_mask")) >> entry & 1
        if whole and step == 1:
            part += names[axis]
            continue
        part += more[axis]
        starts[axis], end = _find_ends(call, entry, extent) if step == 1 else (None, None)
        length = extent if whole and step == -1 else _length(starts[axis], end)
        # The ends are the same on every replica, so a length that they decide is, too.
        extents[more[axis]] = Size.of(Length()) if length is None else length
        mixed += "" if step == 1 else names[axis] + more[axis]
        entries[require(entry)] = names[axis]
    bounds = "".join(entries.get(entry, "-") for entry in range(max(entries, default=-1) + 1))
    sizes = {1: bounds, 2: bounds}
    if graded:
        cuts = {names[axis]: (more[axis], start) for axis, start in starts.items()}
        return Terms([*[None] * 4, part], [names], mixed, sizes={0: names, **sizes}, cuts=cuts)
    cuts = {more[axis]: (names[axis], start) for axis, start in starts.items()}
    return Terms([names], [part], mixed, new=extents, sizes=sizes, cuts=cuts)


def _find_slice(call: Call) -> Terms:
    shape, begin, size = call.shape(), call.values[1].constant, call.constant(2).tolist()
    begins = [None] * len(shape) if begin is None else begin.tolist()
    rest = [None if None in (n, b) else n - b for n, b in zip(shape, begins)]  # type: ignore[operator]
    names, more = name_axes(len(shape)), name_axes(len(shape), len(shape))
    extents = dict(zip(more, [r if n == -1 else n for r, n in zip(rest, size)]))
    cuts = dict(zip(more, zip(names, begins)))
    return Terms([names], [more], new=extents, sizes={1: names, 2: names}, cuts=cuts)


def _label_strided(view: View) -> Ruling | None:
    """Label offsets, and an element of the shape of chosen samples; other slices as the terms say."""
    label = view.labels[0]
    if label.is_offsets:
        return label_some_offsets(view)
    if label.is_count:
        return view.keep(require(label if view.attr("shrink_axis_mask") & 1 else None))
    if not label.is_sizes or not label.chosen:
        return None
    length = view.shape()[0]
    if not isinstance(length, int) or not view.attr("shrink_axis_mask") & 1 or label.chosen == OPEN:
        raise Unknown
    if int(view.fixed(1)[0]) % length != label.axis:
        return view.keep(REPLICATED)
    return view.keep(sizes(0, label.chosen) if isinstance(label.chosen, Ragged) else PARTIAL_SUM)


def _take_entry(call: Call) -> Callable[..., list[tf.Tensor]] | None:
    """Return a slice of one of the samples as a lookup, whose result is a part of a sum."""
    value, axis = call.values[0], call.values[0].label.axis
    if value.label != label_sharded(axis):
        return None
    entry = _place_axes(call, call.rank())[1].get(axis)
    if entry is None or not (value.dtype.is_floating or value.dtype.is_integer):
        return None
    one = call.attr("shrink_axis_mask") >> entry & 1
    if not one and _length(*_find_ends(call, entry, call.shape()[axis])) != 1:
        return None
    from_start = not one and call.attr("begin_mask") >> entry & 1

    def take(x: tf.Tensor, *ends: tf.Tensor) -> list[tf.Tensor]:
        count = require(ends[0].shape[0])
        first = tf.constant(0, ends[0].dtype) if from_start else ends[0][entry]
        first = tf.where(first < 0, first + tf.shape(x, first.dtype)[axis], first)
        here = tf.constant([number == entry for number in range(count)])
        begin, end, step = (
            tf.where(here, tf.constant(n, each.dtype), each) for n, each in zip((0, 1, 1), ends)
        )
        masks = {f"{name}_mask": call.attr(f"{name}_mask") for name in _MASKS}
        row = tf.expand_dims(tf.gather(x, first, axis=axis), axis)
        return [tf.raw_ops.StridedSlice(input=row, begin=begin, end=end, strides=step, **masks)]

    return take


def _find_range(call: Call) -> Shapes:
    first, limit, step = (call.item(number) for number in range(3))
    if None in (first, limit) or not isinstance(step, int) or step == 0:
        raise Unknown
    length = _length(first, limit) if step > 0 else _length(limit, first)
    whole, rest = divide(length, abs(step))
    return [[None if whole is None else whole + (rest != 0)]]  # type: ignore[operator]


def _keep_first_axis(call: Call, shape: Shape) -> Progression | None:
    """Return the progression along the first axis, if the slice takes all of it."""
    found, masks = call.values[0].progression, [call.attr(f"{name}_mask") & 1 for name in _MASKS]
    whole = masks == [0, 0, 0, 1, 1]
    if not found or found.axis or not whole or call.fixed(3)[0] != 1:
        return None
    if found.column:
        first = call.shape(1) == [2] and call.attr("shrink_axis_mask") == 2 and call.fixed(1)[1] == 0
        return dataclasses.replace(found, column=False) if first else None
    return found


_STRIDED: Any = {"label": _label_strided, "numbers": move_elements(), "rewrite": _take_entry}
add_rows("StridedSlice", moves=0, terms=_find_strided, progression=_keep_first_axis, **_STRIDED)
_zeros: Any = {
    "bounds": lambda call: (min(call.values[4].interval[0], 0), max(call.values[4].interval[1], 0))
}
add_rows("StridedSliceGrad", moves=4, terms=_find_strided, shape=shape_in(0), **_zeros)
add_rows("Slice", moves=0, terms=_find_slice, numbers=move_elements())
add_rows(
    "Range",
    shape=_find_range,
    numbers=lambda call, number: as_sizes(np.arange(*(int(call.fixed(n)) for n in range(3))).tolist()),
    progression=is_range,
)
