"""Gathers and scatters, one-hot codes, segments, tables, data-dependent choices."""

from __future__ import annotations

from ..labels import (
    PARTIAL_MAX,
    PARTIAL_MIN,
    PARTIAL_SUM,
    REPLICATED,
    Label,
    is_partial,
    is_sharded,
    same_samples,
    sharded,
    sizes,
)
from .positions import are_in_parts_of_samples, counts_samples, first_column_counts_samples, origin
from .view import Ruling, View, Wants, rule


def _are_along(view: View, axis: int, positions: Label) -> bool:
    """Whether positions refer to an axis of the first input."""
    extents = tuple(None if shape is None else shape[axis] for shape in view.shapes(0))
    return bool(positions.counts) and extents == positions.counts


@rule("GatherV2")
def _gather(view: View) -> Ruling:
    params, indices = view.labels[:2]
    ranks = view.rank(0), view.rank(1)
    axes = view.axes(2, ranks[0])
    if not axes or ranks[0] is None or ranks[1] is None:
        return view.gathered()
    axis, batch = axes[0], view.attr("batch_dims")
    extents = tuple(None if shape is None else shape[axis] for shape in view.shapes(0))
    if (
        is_sharded(params)
        and params.axis == axis
        and ranks[1] == 1
        and counts_samples(view, view.op.inputs[1], extents)
    ):
        return [None, sharded(0, counts=extents), REPLICATED], [params]  # all of them, in order
    if batch:
        together = is_sharded(params) and is_sharded(indices) and params.axis == indices.axis < batch
        if together and same_samples(params, indices) and not indices.counts:
            return [None, None, REPLICATED], [params]
        return view.gathered()
    if is_sharded(params) and params.axis != axis:
        if is_sharded(indices) or is_partial(indices):
            return view.gathered()
        moved = ranks[1] - 1 if params.axis > axis else 0
        return view.kept(params._replace(axis=params.axis + moved))
    if (
        is_sharded(params)
        and is_sharded(indices)
        and _are_along(view, axis, indices)
        and params.blocks == 1
        and not params.chosen
    ):
        return [None, None, REPLICATED], [sharded(axis, chosen=indices.chosen)]
    if is_sharded(indices) and not indices.counts:
        return [REPLICATED, None, REPLICATED], [indices._replace(axis=axis + indices.axis)]
    if params == PARTIAL_SUM and not is_sharded(indices):
        return view.kept(PARTIAL_SUM)
    return view.gathered()


@rule("ResourceGather")
def _gather_variable(view: View) -> Ruling:
    label = view.labels[1]
    if is_sharded(label) and not label.counts:
        return [None, None], [label]
    return view.kept(REPLICATED)


@rule("GatherNd")
def _gather_nd(view: View) -> Ruling:
    params, indices = view.labels
    rank = view.rank(1)
    if (
        is_sharded(params)
        and params.axis == 0
        and _are_along(view, 0, indices)
        and params.blocks == 1
        and not params.chosen
    ):
        return [None, None], [sharded(0, chosen=indices.chosen)]
    extents = tuple(None if shape is None else shape[0] for shape in view.shapes(0))
    if (
        params == sharded(0)
        and indices == sharded(0)
        and None not in extents
        and first_column_counts_samples(view, 1, extents)
    ):
        return [None, sharded(0, counts=extents, column=True)], [sharded(0)]
    if is_sharded(indices) and not indices.counts and rank is not None and indices.axis < rank - 1:
        return [REPLICATED, None], [indices]
    return view.gathered()


@rule("ScatterNd")
def _scatter(view: View) -> Ruling:
    indices, updates = view.labels[:2]
    together = is_sharded(indices) and is_sharded(updates) and indices.axis == updates.axis == 0
    if together and same_samples(indices, updates) and not indices.counts and not view.depends_on_batch():
        return [None, None, REPLICATED], [PARTIAL_SUM]
    extents = tuple(None if shape is None else shape[0] for shape in view.out_shapes[0])
    if (
        indices == updates == sharded(0)
        and None not in extents
        and first_column_counts_samples(view, 0, extents)
    ):
        return [sharded(0, counts=extents, column=True), None, sizes(0)], [sharded(0)]
    return view.gathered()


@rule("TensorScatterAdd", "TensorScatterSub")
def _scatter_into(view: View) -> Ruling:
    into, indices, updates = view.labels
    together = is_sharded(indices) and is_sharded(updates) and indices.axis == updates.axis == 0
    if together and same_samples(indices, updates) and not indices.counts and not is_sharded(into):
        return [PARTIAL_SUM, None, None], [PARTIAL_SUM]
    return view.gathered()


@rule("OneHot")
def _one_hot(view: View) -> Ruling:
    label, rank = view.labels[0], view.out_rank()
    if not is_sharded(label) or rank is None or label.counts:
        return view.gathered()
    at = view.attr("axis") % rank
    made = label._replace(axis=label.axis + (at <= label.axis))
    return view.kept(made)


_SEGMENTS = {
    "UnsortedSegmentSum": PARTIAL_SUM, "UnsortedSegmentMax": PARTIAL_MAX, "UnsortedSegmentMin": PARTIAL_MIN,
}  # fmt: skip


@rule(*_SEGMENTS)
def _segments(view: View) -> Ruling:
    data, ids = view.labels[:2]
    rank = view.rank(1)
    if (
        is_sharded(data)
        and rank is not None
        and data.axis >= rank
        and not is_sharded(ids)
        and not is_partial(ids)
    ):
        return view.kept(data._replace(axis=data.axis - rank + 1))
    together = is_sharded(data) and is_sharded(ids) and data.axis == ids.axis and same_samples(data, ids)
    if together and data.axis < (view.rank(1) or 0) and not ids.counts and not view.depends_on_batch():
        return [None, None, REPLICATED], [_SEGMENTS[view.type]]
    extents = tuple(None if shape is None else shape[0] for shape in view.out_shapes[0])
    if together and view.rank(1) == 1 and None not in extents and data.blocks == 1:
        if ids.counts == extents:  # the backward pass of a choice of samples
            return [None, None, sizes(0)], [sharded(0)]
        if not ids.counts and not data.chosen and are_in_parts_of_samples(view, 1, extents):
            return [None, sharded(0, counts=extents), sizes(0)], [sharded(0)]
    return view.gathered()


@rule("Bincount", "DenseBincount")
def _bin_count(view: View) -> Ruling:
    label, rank = view.labels[0], view.rank(0)
    weights = view.shapes(2)[0]
    if (
        is_sharded(label)
        and view.type == "DenseBincount"
        and rank == 1
        and weights == [0]
        and not view.attr("binary_output")
    ):
        return view.kept(PARTIAL_SUM)
    if (
        is_sharded(label)
        and view.type == "DenseBincount"
        and rank == 2
        and label.axis == 0
        and weights == [0]
    ):
        return view.kept(label)
    return view.gathered()


@rule("Where")
def _positions_of_true(view: View) -> Ruling:
    label = view.labels[0]
    if not is_sharded(label) or label.axis != 0 or label.blocks > 1 or view.rank(0) != 1 or label.chosen:
        return view.gathered()
    extents = tuple(None if shape is None else shape[0] for shape in view.shapes(0))
    if None in extents:
        return view.gathered()
    chosen = f"{id(view.value_of(origin(view.op.inputs[0])))} {extents}"  # where the same is true
    return [None], [sharded(0, chosen=chosen, counts=extents)]  # type: ignore[arg-type]


@rule("LookupTableFindV2")
def _look_up(view: View) -> Ruling:
    label = view.labels[1]
    wants: Wants = [None, None if is_sharded(label) and not label.counts else REPLICATED, REPLICATED]
    return wants, [label if wants[1] is None else REPLICATED]


@rule("MatrixBandPart")
def _band(view: View) -> Ruling:
    label, rank = view.labels[0], view.rank(0)
    if not is_sharded(label) or rank is None or label.axis >= rank - 2:
        return view.gathered()
    return view.kept(label)


@rule("Roll")
def _roll(view: View) -> Ruling:
    label, axes = view.labels[0], view.axes(2, view.rank(0))
    if not is_sharded(label) or axes is None or label.axis in axes:
        return view.gathered()
    return view.kept(label)
