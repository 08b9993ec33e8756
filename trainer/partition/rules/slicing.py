"""Slices. Along the axis of the samples: the whole axis, or whole blocks."""

from __future__ import annotations

from ..labels import REPLICATED, Label, is_partial, is_sharded, sizes
from ..program import Shape
from .view import Ruling, View, Wants, rule


def _entries(view: View, count: int, rank: int) -> tuple[list[int | None], dict[int, tuple[int, bool]]]:
    """The original axis for each axis of a slice (None: new); the entry that names each original axis.

    Each entry comes with a flag: whether the slice drops that axis.
    """
    names = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    ellipsis, new, shrink = (view.op.get_attr(name) for name in names)
    axes: list[int | None] = []
    named: dict[int, tuple[int, bool]] = {}
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
            dropped = bool(shrink >> entry & 1)
            named[axis] = entry, dropped
            if not dropped:
                axes.append(axis)
            axis += 1
    axes += range(axis, rank)
    return axes, named


def _blocks(
    view: View, label: Label, entry: int, whole: tuple[Shape, Shape], part: list[int | None]
) -> int | None:
    """The number of blocks in a slice with step 1 along the sharded axis; None where it cuts through one."""
    masks = [view.op.get_attr(name) >> entry & 1 for name in ("begin_mask", "end_mask")]
    first = 1
    strides = view.fixed(first + 2)
    if strides is None or int(strides[entry]) != 1:
        return None
    if all(masks):
        return label.blocks
    begin = view.constant(first)
    found = []
    for probe in (0, 1):
        shape = whole[probe]
        extent = None if shape is None else shape[label.axis]
        if extent is None or part[probe] is None or (not masks[0] and begin is None):
            return None
        start = 0 if masks[0] or begin is None else int(begin[probe][entry]) % extent
        blocks = part[probe] * label.blocks / extent  # type: ignore[operator]
        if start * label.blocks % extent or blocks != int(blocks) or blocks < 1:
            return None
        found.append(int(blocks))
    return found[0] if found[0] == found[1] and (found[0] == label.blocks or not label.chosen) else None


@rule("StridedSlice")
def _strided_slice(view: View) -> Ruling:
    label, rank, begin = view.labels[0], view.rank(0), view.shapes(1)[0]
    if label.kind == "sizes" and label.chosen:
        entry, length = view.fixed(1), view.shapes(0)[0]
        if entry is not None and length and length[0] and view.op.get_attr("shrink_axis_mask") & 1:
            found = REPLICATED if int(entry[0]) % length[0] != label.axis else Label("partial sum")
            return view.kept(found)
        return view.gathered()
    if is_partial(label):
        return view.kept(label)
    if not is_sharded(label) or rank is None or begin is None or begin[0] is None:
        return view.gathered()
    axes, named = _entries(view, begin[0], rank)
    if label.axis not in axes:
        return view.gathered()
    place = axes.index(label.axis)
    wants: Wants = [None, REPLICATED, REPLICATED, REPLICATED]
    if label.axis not in named:
        return wants, [label._replace(axis=place)]
    entry = named[label.axis][0]
    extents = [None if shape is None else shape[place] for shape in view.out_shapes[0]]
    blocks = _blocks(view, label, entry, view.shapes(0), extents)
    if blocks is None:
        return view.gathered()
    if not label.chosen:
        wants[1] = wants[2] = sizes(entry)
    return wants, [
        label._replace(axis=place, blocks=blocks, counts=label.counts if blocks == label.blocks else False)
    ]


@rule("StridedSliceGrad", linear_in=4)
def _strided_slice_gradient(view: View) -> Ruling:
    label, count = view.labels[4], view.shapes(1)[0]
    rank = view.out_rank()
    if rank is None or count is None or count[0] is None:
        return view.gathered()
    axes, named = _entries(view, count[0], rank)
    axis = axes[label.axis]
    if axis is None:
        return view.gathered()
    wants: Wants = [sizes(axis, label.chosen), REPLICATED, REPLICATED, REPLICATED, None]
    if label.chosen:
        if view.labels[0] != wants[0]:
            return view.gathered()
        return wants, [label._replace(axis=axis)]
    if axis not in named:
        return wants, [label._replace(axis=axis)]
    entry = named[axis][0]
    whole, part = view.out_shapes[0], [None if s is None else s[label.axis] for s in view.shapes(4)]
    extents = [None if shape is None else shape[axis] for shape in whole]
    ratios = [None if not b or a is None or a % b else a // b for a, b in zip(extents, part)]
    if ratios[0] is None or ratios[0] != ratios[1]:
        return view.gathered()
    blocks = label.blocks * ratios[0]
    made = label._replace(axis=axis, blocks=blocks)
    if _blocks(view, made, entry, whole, part) != label.blocks:
        return view.gathered()
    wants[1] = wants[2] = sizes(entry)
    return wants, [made]


@rule("Slice", linear_in=0)
def _slice(view: View) -> Ruling:
    label, begin = view.labels[0], view.constant(1)
    if begin is None or label.counts:
        return view.gathered()
    blocks = set()
    for probe in (0, 1):
        before, after = view.shapes(0)[probe], view.out_shapes[0][probe]
        whole, part = (None if shape is None else shape[label.axis] for shape in (before, after))
        first = int(begin[probe][label.axis])
        if not whole or not part or part * label.blocks % whole or first * label.blocks % whole:
            return view.gathered()
        blocks.add(part * label.blocks // whole)
    if len(blocks) > 1 or (label.chosen and blocks != {label.blocks}):
        return view.gathered()
    return [None, sizes(label.axis), sizes(label.axis)], [label._replace(blocks=blocks.pop())]
