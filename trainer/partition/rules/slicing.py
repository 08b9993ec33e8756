"""Slices. Along the axis of the samples: the whole axis, or whole blocks."""

from __future__ import annotations

from collections.abc import Iterable

from ..labels import PARTIAL_SUM, REPLICATED, Label, is_partial, sizes
from .view import Extents, Gather, Ruling, View, extents_of, known, rule


def _entries(view: View, rank: int) -> tuple[list[int | None], dict[int, int]]:
    """Return the original axis for each axis of a slice (None: new), and the entry that names each original axis."""
    count = known(view.shape(1)[0])
    names = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    ellipsis, new, shrink = (view.op.get_attr(name) for name in names)
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


def _blocks(label: Label, starts: Iterable[int], whole: Extents, part: Extents) -> int:
    """The number of blocks in a slice along the sharded axis, which must not cut through one."""
    found = set()
    for start, extent, length in zip(starts, whole, part):
        if not extent or not length or length * label.blocks % extent or start * label.blocks % extent:
            raise Gather
        found.add(length * label.blocks // extent)
    if len(found) > 1 or (label.chosen and found != {label.blocks}):
        raise Gather
    return found.pop()


def _strided_blocks(view: View, label: Label, entry: int | None, whole: Extents, part: Extents) -> int:
    """`_blocks` of the entry of a strided slice that names the sharded axis; None: the whole axis."""
    if entry is None:
        return label.blocks
    from_begin, to_end = (view.op.get_attr(name) >> entry & 1 for name in ("begin_mask", "end_mask"))
    if int(view.fixed(3)[entry]) != 1:
        raise Gather
    if from_begin and to_end:
        return label.blocks
    starts = (0, 0) if from_begin else [int(begin[entry]) for begin in view.constant(1)]
    return _blocks(label, starts, whole, part)


@rule("StridedSlice")
def _strided_slice(view: View) -> Ruling:
    label = view.labels[0]
    if label.kind == "sizes" and label.chosen:
        length = known(view.shape(0)[0])
        if not view.op.get_attr("shrink_axis_mask") & 1:
            raise Gather
        return view.kept(PARTIAL_SUM if int(view.fixed(1)[0]) % length == label.axis else REPLICATED)
    if is_partial(label):
        return view.kept(label)
    label = view.samples()
    axes, named = _entries(view, view.rank(0))
    if label.axis not in axes:
        raise Gather
    place, entry = axes.index(label.axis), named.get(label.axis)
    whole, part = extents_of(view.shapes(0), label.axis), extents_of(view.out_shapes[0], place)
    blocks = _strided_blocks(view, label, entry, whole, part)
    bound = REPLICATED if label.chosen or entry is None else sizes(entry)
    counts = label.counts if blocks == label.blocks else False
    return [None, bound, bound, REPLICATED], [label._replace(axis=place, blocks=blocks, counts=counts)]


@rule("StridedSliceGrad", linear_in=4)
def _strided_slice_gradient(view: View) -> Ruling:
    label = view.labels[4]
    axes, named = _entries(view, view.out_rank())
    axis = axes[label.axis]
    if axis is None:
        raise Gather
    shape, entry = sizes(axis, label.chosen), named.get(axis)
    if label.chosen and view.labels[0] != shape:
        raise Gather
    if label.chosen or entry is None:
        return [shape, REPLICATED, REPLICATED, REPLICATED, None], [label._replace(axis=axis)]
    whole, part = extents_of(view.out_shapes[0], axis), extents_of(view.shapes(4), label.axis)
    ratios = {None if not b or a is None or a % b else a // b for a, b in zip(whole, part)}
    ratio = ratios.pop()
    if ratios or ratio is None:
        raise Gather
    made = label._replace(axis=axis, blocks=label.blocks * ratio)
    if _strided_blocks(view, made, entry, whole, part) != label.blocks:
        raise Gather
    return [shape, sizes(entry), sizes(entry), REPLICATED, None], [made]


@rule("Slice", linear_in=0)
def _slice(view: View) -> Ruling:
    label = view.labels[0]
    starts = [int(begin[label.axis]) for begin in view.constant(1)]
    whole, part = (extents_of(shapes, label.axis) for shapes in (view.shapes(0), view.out_shapes[0]))
    blocks = _blocks(label, starts, whole, part)
    return [None, sizes(label.axis), sizes(label.axis)], [label._replace(blocks=blocks)]
