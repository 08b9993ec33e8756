"""Sizes, reshapes, slices, concatenations: the axis of the samples after each."""

from ..labels import PARTIAL_SUM, REPLICATED, Label, is_partial, is_sharded, label_sharded, sizes
from ..program import MeshAxis
from ..sizes.moved_extents import find_squeezed_axes
from ..sizes.size import Extent, is_open, quotient
from ..sizes.size_arrays import product
from .elementwise import LINEAR, elementwise
from .view import Gather, Ruling, View, Wants, require_known, rule


@rule("Shape", "ShapeN", "Size", "Rank")
def _sizes(view: View) -> Ruling:
    made = []
    for label in view.labels:
        if not is_sharded(label) or view.type == "Rank":
            made.append(REPLICATED)
        elif view.type == "Size":
            made.append(PARTIAL_SUM if label.chosen else sizes(0))
        else:
            made.append(sizes(label.axis, label.chosen))
    return [None] * len(view.labels), made


def reshape_label(label: Label, old: list[Extent], new: list[Extent], mesh: MeshAxis) -> Label | None:
    """Return the label of a SHARDED tensor after a reshape; None where its samples do not stay together."""
    if not label.chosen and None not in old and None not in new:
        outer: Extent = 1
        for axis, extent in enumerate(new):
            blocks = quotient(product([label.blocks, *old[: label.axis]]), outer)
            if isinstance(blocks, int) and blocks and mesh.divides(extent, blocks):
                return label._replace(axis=axis, blocks=blocks)
            outer = product([outer, extent])
        return None
    if label.axis != 0 or not new or label.blocks > 1:
        return None
    if not label.chosen:
        return label if mesh.divides(new[0]) else None
    if any(map(is_open, new[1:])):
        return label if None not in new[1:] and old[1:] == new[1:] else None
    inner = product(extent for extent in old[1:] if not is_open(extent))
    return label if quotient(inner, product(new[1:]) or 1) is not None else None


@rule("Reshape", linear_in=0)
def _reshape(view: View) -> Ruling:
    label = view.labels[0]
    if label.counts and label.axis == 0 and view.out_rank() == 1 and view.rank(0) == 1:
        return [None, sizes(0, label.chosen)], [label]
    if label.counts:
        raise Gather
    found = require_known(reshape_label(label, view.shape(0), view.out_shape(), view.mesh))
    return [None, sizes(found.axis, found.chosen)], [found]


@rule("ExpandDims", linear_in=0)
def _expand(view: View) -> Ruling:
    label = view.labels[0]
    place = int(view.require_fixed(1).ravel()[0]) % (view.rank(0) + 1)
    return view.keep(label._replace(axis=label.axis + (place <= label.axis)))


@rule("Squeeze", linear_in=0)
def _squeeze(view: View) -> Ruling:
    view.out_shape()
    return view.without_axes(find_squeezed_axes(view.op, view.shape(0)))


@rule("Transpose", linear_in=0)
def _transpose(view: View) -> Ruling:
    label = view.labels[0]
    return view.keep(label._replace(axis=view.require_fixed(1).tolist().index(label.axis)))


@rule("Pad", "PadV2", "MirrorPad", "MirrorPadGrad")
def _pad(view: View) -> Ruling:
    label = view.samples()
    if any(more != 0 for more in view.constant(1)[label.axis]):
        raise Gather
    return view.keep(label)


@rule("Tile")
def _tile(view: View) -> Ruling:
    label = view.labels[0]
    if label == PARTIAL_SUM:
        return view.keep(label)
    if not is_sharded(label):
        return broadcast(view, 0, 1)
    count = view.constant(1)[label.axis]
    if is_open(count) or (count != 1 and (label.blocks > 1 or label.chosen)):
        raise Gather
    return view.keep(label._replace(blocks=label.blocks * count))


@rule("BroadcastTo")
def _broadcast_to(view: View) -> Ruling:
    label = view.labels[0]
    if is_sharded(label):
        axis = label.axis + view.out_rank() - view.rank(0)
        return [None, sizes(axis, label.chosen)], [label._replace(axis=axis)]
    return broadcast(view, 0, 1)


@rule("Fill")
def _fill(view: View) -> Ruling:
    return broadcast(view, 1, 0)


def broadcast(view: View, data: int, shape: int) -> Ruling:
    """Label a tensor filled with the replicated input `data`: each replica makes the part of its samples.

    `shape` is the number of the input with the shape, or with the repetitions of axes.
    """
    label = view.labels[shape]
    wants: Wants = [REPLICATED] * len(view.labels)
    given = view.values[data].shape
    ones = view.type != "Tile" or (given is not None and given[label.axis : label.axis + 1] == [1])
    if label.kind == "sizes" and label.chosen and ones:
        wants[shape] = None
        return wants, [label_sharded(label.axis, chosen=label.chosen)]
    axis = view.samples_axis()
    if axis is not None and given is not None and None not in view.out_shape():
        inner = axis - (view.out_rank() - len(given))
        if inner < 0 or given[inner] == 1:
            wants[shape] = sizes(axis)
            return wants, [label_sharded(axis)]
    if view.labels[data] == PARTIAL_SUM:
        wants[data] = PARTIAL_SUM
        return wants, [PARTIAL_SUM]
    return wants, [REPLICATED]


@rule("ConcatV2")
def _concat(view: View) -> Ruling:
    parts = view.labels[:-1]
    axis = int(view.require_fixed(len(parts))) % max(view.out_rank(), 1)
    if any(is_sharded(label) and label.axis == axis for label in parts):
        first = parts[0]
        alike = all(label == first for label in parts) and not first.chosen
        if alike and len({view.shape(number)[axis] for number in range(len(parts))}) == 1:
            return [*[None] * len(parts), REPLICATED], [first._replace(blocks=first.blocks * len(parts))]
        raise Gather
    wants, made = elementwise(view, LINEAR, range(len(parts)))
    wants[-1] = REPLICATED
    return wants, made


@rule("Pack")
def _pack(view: View) -> Ruling:
    leads = [label for label in view.labels if is_sharded(label)]
    leads.sort(key=lambda label: view.values[view.labels.index(label)].free)
    at = view.attr("axis") % view.out_rank()
    if not leads:
        if {*view.labels} - {PARTIAL_SUM, REPLICATED} or view.op.outputs[0].dtype.is_integer:
            raise Gather
        return [PARTIAL_SUM] * len(view.labels), [PARTIAL_SUM]
    if leads[0].chosen and any(label != leads[0] for label in view.labels):
        raise Gather
    return [leads[0]] * len(view.labels), [leads[0]._replace(axis=leads[0].axis + (at <= leads[0].axis))]


@rule("Unpack", linear_in=0)
def _unpack(view: View) -> Ruling:
    return view.without_axes([view.attr("axis") % view.rank(0)])


@rule("Split", "SplitV")
def _split(view: View) -> Ruling:
    data, where = (1, 0) if view.type == "Split" else (0, 2)
    if is_partial(view.labels[data]):
        return view.keep(view.labels[data], data)
    label, count = view.samples(data), len(view.op.outputs)
    if view.axes(where, data)[0] != label.axis:
        return view.keep(label, data)
    if view.type != "Split" or label.blocks % count:
        raise Gather
    return view.keep(label._replace(blocks=label.blocks // count), data)
