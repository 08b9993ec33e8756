"""Slices and ranges. Along the axis of the samples a slice takes the whole axis, or whole blocks."""

from typing import Any

import numpy as np

from ..labels import PARTIAL_SUM, REPLICATED, Label, sizes
from ..sizes.intervals import keep_bounds
from ..sizes.positions import Progression, is_range
from ..sizes.size import Extent, Shape, at_most, divide, quotient
from ..sizes.size_arrays import Unknown, as_sizes, plain, product
from .call import Call, Ruling, Shapes, View, require, shape_in
from .number_rules import move_elements
from .row import add_rows


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


def _find_strided(call: Call) -> Shapes:
    shape, steps = call.shape(), plain(call.values[3].constant)
    axes, named = _place_axes(call, len(shape))

    def length(axis: int) -> Extent:
        entry, extent = named.get(axis), shape[axis]
        step = 1 if entry is None else None if steps is None else int(steps[entry])
        if step == 1:
            return _length(*_find_ends(call, entry, extent))
        whole = entry is not None and (call.attr("begin_mask") & call.attr("end_mask")) >> entry & 1
        return extent if step == -1 and whole else None

    return [[1 if axis is None else length(axis) for axis in axes]]


def _find_slice(call: Call) -> Shapes:
    shape, begin, size = call.shape(), call.values[1].constant, call.constant(2)
    begins = [None] * len(shape) if begin is None else begin.tolist()
    rest = [None if None in (n, b) else n - b for n, b in zip(shape, begins)]  # type: ignore[operator]
    return [[r if n == -1 else n for r, n in zip(rest, size.tolist())]]


def _blocks(label: Label, start: Extent, whole: Extent, part: Extent) -> int:
    """Return the number of blocks in a slice along the sharded axis, which must not cut through one."""
    count, before = (quotient(product([extent, label.blocks]), whole) for extent in (part, start))
    if not count or not isinstance(count, int) or not isinstance(before, int):
        raise Unknown
    return require(None if label.chosen and count != label.blocks else count)


def _count_strided_blocks(view: View, label: Label, entry: int | None, whole: Extent, part: Extent) -> int:
    """Return `_blocks` of the entry of a strided slice that names the sharded axis; None: the whole axis."""
    if entry is None:
        return label.blocks
    if view.constant(3)[entry] != 1:
        raise Unknown
    if all(view.attr(name) >> entry & 1 for name in ("begin_mask", "end_mask")):
        return label.blocks
    return _blocks(label, _find_ends(view, entry, whole)[0], whole, part)


def _label_strided(view: View) -> Ruling:
    label = view.labels[0]
    if label.kind == "sizes" and label.chosen:
        length = view.shape()[0]
        if not isinstance(length, int) or not view.attr("shrink_axis_mask") & 1:
            raise Unknown
        return view.keep(PARTIAL_SUM if int(view.fixed(1)[0]) % length == label.axis else REPLICATED)
    label = view.samples()
    axes, named = _place_axes(view, view.rank())
    if label.axis not in axes:
        raise Unknown
    place, entry = axes.index(label.axis), named.get(label.axis)
    whole, part = view.shape()[label.axis], view.out_shape()[place]
    blocks = _count_strided_blocks(view, label, entry, whole, part)
    bound = REPLICATED if label.chosen or entry is None else sizes(entry)
    return [None, bound, bound, REPLICATED], [label._replace(axis=place, blocks=blocks)]


def _label_strided_gradient(view: View) -> Ruling:
    label = view.samples(4)
    axes, named = _place_axes(view, view.out_rank())
    axis = require(axes[label.axis])
    shape, entry = sizes(axis, label.chosen), named.get(axis)
    if label.chosen and view.labels[0] != shape:
        raise Unknown
    if label.chosen or entry is None:
        return [shape, REPLICATED, REPLICATED, REPLICATED, None], [label._replace(axis=axis)]
    whole, part = view.out_shape()[axis], view.shape(4)[label.axis]
    ratio = quotient(whole, part)
    if not isinstance(ratio, int):
        raise Unknown
    made = label._replace(axis=axis, blocks=label.blocks * ratio)
    if _count_strided_blocks(view, made, entry, whole, part) != label.blocks:
        raise Unknown
    return [shape, sizes(entry), sizes(entry), REPLICATED, None], [made]


def _label_slice(view: View) -> Ruling:
    label = view.samples()
    start = view.constant(1)[label.axis]
    blocks = _blocks(label, start, view.shape()[label.axis], view.out_shape()[label.axis])
    return [None, sizes(label.axis), sizes(label.axis)], [label._replace(blocks=blocks)]


def _slice_numbers_strided(call: Call, data: np.ndarray, *ends: np.ndarray) -> np.ndarray:
    begin, end, step = ends
    masks = [call.attr(f"{name}_mask") for name in ("ellipsis", "new_axis", "shrink_axis", "begin", "end")]
    entries: list[Any] = []
    for n in range(len(begin)):
        ellipsis, new, shrink, from_begin, to_end = (mask >> n & 1 for mask in masks)
        first, last = None if from_begin else int(begin[n]), None if to_end else int(end[n])
        plain_slice = int(begin[n]) if shrink else slice(first, last, int(step[n]))
        entries.append(Ellipsis if ellipsis else np.newaxis if new else plain_slice)
    return as_sizes(data[tuple(entries)])


def _slice_numbers(call: Call, data: np.ndarray, begin: np.ndarray, size: np.ndarray) -> np.ndarray:
    return data[tuple(slice(b, None if s < 0 else b + s) for b, s in zip(begin.tolist(), size.tolist()))]


def _find_range(call: Call) -> Shapes:
    first, limit, step = (call.item(number) for number in range(3))
    if None in (first, limit) or not isinstance(step, int) or step == 0:
        raise Unknown
    length = _length(first, limit) if step > 0 else _length(limit, first)
    whole, rest = divide(length, abs(step))
    return [[None if whole is None else whole + (rest != 0)]]  # type: ignore[operator]


def _range_numbers(call: Call, number: int) -> np.ndarray:
    return as_sizes(np.arange(*(int(call.fixed(n)) for n in range(3))).tolist())


def _keep_first_axis(call: Call, shape: Shape) -> Progression | None:
    """Return the progression along the first axis, if the slice takes all of it."""
    found, masks = (
        call.values[0].progression,
        [call.attr(f"{n}_mask") for n in ("ellipsis", "new_axis", "shrink_axis")],
    )
    whole = call.attr("begin_mask") & call.attr("end_mask") & ~(masks[0] | masks[1] | masks[2]) & 1
    return found if found and not (found.axis or found.column) and whole and call.fixed(3)[0] == 1 else None


_MOVES: Any = {"moves": 0, "bounds": keep_bounds()}
_STRIDED: Any = {
    "label": _label_strided,
    "shape": _find_strided,
    "numbers": move_elements(_slice_numbers_strided),
}
add_rows("StridedSlice", **_MOVES, **_STRIDED, progression=_keep_first_axis)
add_rows("StridedSliceGrad", moves=4, label=_label_strided_gradient, shape=shape_in(0))
add_rows("Slice", **_MOVES, label=_label_slice, shape=_find_slice, numbers=move_elements(_slice_numbers))
add_rows("Range", shape=_find_range, numbers=_range_numbers, progression=is_range)
