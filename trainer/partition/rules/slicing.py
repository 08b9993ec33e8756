"""Slices. Along the axis of the samples: the whole axis, or whole blocks."""

from ..labels import PARTIAL_SUM, REPLICATED, Label, is_partial, sizes
from ..sizes.moved_extents import name_axes, slice_ends
from ..sizes.size import Extent, quotient
from ..sizes.size_arrays import product
from .view import Gather, Ruling, View, rule


def _name_axes(view: View, rank: int) -> tuple[list[int | None], dict[int, int]]:
    count = view.shape(1)[0]
    if not isinstance(count, int):
        raise Gather
    return name_axes(view.op, count, rank)


def _blocks(label: Label, start: Extent, whole: Extent, part: Extent) -> int:
    """Return the number of blocks in a slice along the sharded axis, which must not cut through one."""
    count, before = (quotient(product([extent, label.blocks]), whole) for extent in (part, start))
    if not isinstance(count, int) or not isinstance(before, int) or not count:
        raise Gather
    if label.chosen and count != label.blocks:
        raise Gather
    return count


def _count_strided_blocks(view: View, label: Label, entry: int | None, whole: Extent, part: Extent) -> int:
    """Return `_blocks` of the entry of a strided slice that names the sharded axis; None: the whole axis."""
    if entry is None:
        return label.blocks
    if view.constant(3)[entry] != 1:
        raise Gather
    if all(view.op.get_attr(name) >> entry & 1 for name in ("begin_mask", "end_mask")):
        return label.blocks
    return _blocks(label, slice_ends(view.op, view.values, entry, whole)[0], whole, part)


@rule("StridedSlice")
def _slice_strided(view: View) -> Ruling:
    label = view.labels[0]
    if label.kind == "sizes" and label.chosen:
        length = view.shape(0)[0]
        if not isinstance(length, int) or not view.op.get_attr("shrink_axis_mask") & 1:
            raise Gather
        return view.keep(PARTIAL_SUM if int(view.require_fixed(1)[0]) % length == label.axis else REPLICATED)
    if is_partial(label):
        return view.keep(label)
    label = view.samples()
    axes, named = _name_axes(view, view.rank(0))
    if label.axis not in axes:
        raise Gather
    place, entry = axes.index(label.axis), named.get(label.axis)
    whole, part = view.shape(0)[label.axis], view.out_shape()[place]
    blocks = _count_strided_blocks(view, label, entry, whole, part)
    bound = REPLICATED if label.chosen or entry is None else sizes(entry)
    counts = label.counts if blocks == label.blocks else None
    return [None, bound, bound, REPLICATED], [label._replace(axis=place, blocks=blocks, counts=counts)]


@rule("StridedSliceGrad", linear_in=4)
def _grade_strided_slice(view: View) -> Ruling:
    label = view.labels[4]
    axes, named = _name_axes(view, view.out_rank())
    axis = axes[label.axis]
    if axis is None:
        raise Gather
    shape, entry = sizes(axis, label.chosen), named.get(axis)
    if label.chosen and view.labels[0] != shape:
        raise Gather
    if label.chosen or entry is None:
        return [shape, REPLICATED, REPLICATED, REPLICATED, None], [label._replace(axis=axis)]
    whole, part = view.out_shape()[axis], view.shape(4)[label.axis]
    ratio = quotient(whole, part)
    if not isinstance(ratio, int):
        raise Gather
    made = label._replace(axis=axis, blocks=label.blocks * ratio)
    if _count_strided_blocks(view, made, entry, whole, part) != label.blocks:
        raise Gather
    return [shape, sizes(entry), sizes(entry), REPLICATED, None], [made]


@rule("Slice", linear_in=0)
def _slice(view: View) -> Ruling:
    label = view.labels[0]
    start = view.constant(1)[label.axis]
    blocks = _blocks(label, start, view.shape(0)[label.axis], view.out_shape()[label.axis])
    return [None, sizes(label.axis), sizes(label.axis)], [label._replace(blocks=blocks)]
