"""Gathers and scatters, one-hot codes, segments, tables, data-dependent choices.

Positions count from the first sample of the batch. Where a replica has a part of what they name, `copy` counts them from its
own first sample.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..conversions import extent_of, find_in_part, find_start, where
from ..labels import PARTIAL_MAX, PARTIAL_MIN, PARTIAL_SUM, REPLICATED, are_together, label_sharded, sizes
from ..sizes.bounds import Interval
from ..sizes.positions import CHOSEN, are_chosen, counts_samples, keep_progression, stays_in_parts
from ..sizes.size import per_sample
from ..sizes.size_arrays import Unknown, as_sizes
from .call import Call, ReplicaCall, Ruling, Shapes, View, keep_shape, name_axes, require, shape_in
from .number_rules import move_elements
from .row import add_rows, is_any, part_by_terms, row_of
from .terms import FIRST, Terms
from .value_places import label_found_values, label_sums_at_places


def _chooses_samples(view: View, axis: int) -> bool:
    """Return whether the second input has positions of samples along the sharded axis of the first one."""
    plain = view.labels[0] == label_sharded(axis) and view.mesh.of_batch
    return plain and are_chosen(view.values[1], view.shape()[axis])


def _count_in_parts(
    number: int, find_axis: Callable[[Call], int], data: int | None = None, count: int = 0
) -> Any:
    """Return the `copy` of an operation with positions, the input of this number, along an axis of `data` or the output.

    Where replicas have parts of this axis, it counts from the start of this one's part. Entries at positions of other parts
    are 0. There are none of these where the positions are in parts, too. The input `count` begins with the output's extent.
    """

    def copy(call: ReplicaCall, given: list[Any]) -> list[Any]:
        if call.values[number].label.is_places:
            return call.make(given)
        divided = call.made[0] if data is None else call.values[data].labels
        axis = find_axis(call) if any(label.is_sharded for label in divided) else None
        around = zip(divided, call.values[number].labels, call.places)
        part = next((each for each in around if each[0].is_sharded and each[0].axis == axis), None)
        if part is None or axis is None:
            return call.make(given)
        extent = tf.reshape(given[count], [-1])[0] if data is None else extent_of(given[data], axis)
        inside = part[1].is_sharded
        own = find_in_part(given[number], extent, part[2], inside)
        if inside or data is None:
            return call.make([*given[:number], own, *given[number + 1 :]])
        behind = [tf.newaxis] * (call.rank(data) - 1 - axis)
        found = call.make([given[0], tf.where(own == -1, tf.zeros_like(own), own), *given[2:]])
        return [where((own != -1)[(..., *behind)], each) for each in found]

    return copy


def _find_gathered(call: Call) -> Terms:
    batch, names, (axis,) = call.attr("batch_dims"), call.names(), call.axes(2)
    indices = names[:batch] + name_axes(call.rank(1) - batch, len(names))
    return Terms([names, indices], [names[:axis] + indices[batch:] + names[axis + 1 :]], names[axis])


def _label_gather(view: View) -> Ruling | None:
    params, indices = view.labels[:2]
    if (found := label_found_values(view)) is not None:
        return found
    (axis,), rank, batch = view.axes(2), view.rank(1), view.attr("batch_dims")
    extent = view.shape()[axis]
    if params.is_sharded and params.axis == axis:
        if (rank, batch) == (1, 0) and counts_samples(view.values[1], extent):
            return [None, label_sharded(0), REPLICATED], [params]  # all of them, in order
        if _is_in_parts(view, batch, axis, extent):
            return [None, REPLICATED, REPLICATED], [PARTIAL_SUM]
    if not batch and _chooses_samples(view, axis):
        return [None, None, REPLICATED], [label_sharded(axis, chosen=indices.chosen)]
    return None


def _is_in_parts(view: View, batch: int, axis: int, extent: Any) -> bool:
    """Return whether a lookup finds what its part has, else 0.

    It does by parts of a model, and where it takes one entry: of each sample, or of all of them.
    """
    params, indices = view.labels[:2]
    of_all = not view.mesh.of_batch or (view.rank(1) == 0 and per_sample(extent) is not None)
    known = params == label_sharded(axis) and (batch == axis if batch else of_all)
    numbers = view.values[0].dtype.is_floating or view.values[0].dtype.is_integer
    return known and numbers and (indices == REPLICATED or view.values[1].free or indices.is_partial)


def _bound_positions(call: Call) -> dict[int, Interval]:
    """Return the bounds of the positions of a lookup: others are an error."""
    extent = call.shape()[call.axes(2)[0]]
    return {1: (0, extent - 1)} if isinstance(extent, int) else {}


_LOOKUP: Any = {"terms": _find_gathered, "label": _label_gather, "linear": FIRST, "scales": is_any}
_LOOKUP |= {"asserts": _bound_positions, "copy": _count_in_parts(1, lambda call: call.axes(2)[0], data=0)}
add_rows("GatherV2", **_LOOKUP, numbers=move_elements())


add_rows(
    "ResourceGather",
    terms=lambda call: Terms([None, call.names(1)], [name_axes(require(call.op.outputs[0].shape.rank))]),
)
add_rows("LookupTableFindV2", terms=lambda call: Terms([None, call.names(1)], [call.names(1)]), harmless=True)


def _label_gather_nd(view: View) -> Ruling:
    params, indices = view.labels
    extent = view.shape()[0]
    places = (
        params == label_sharded(0) and view.mesh.of_batch and are_chosen(view.values[1], extent, column=True)
    )
    if places or _chooses_samples(view, 0):
        return [None, None], [label_sharded(0, chosen=indices.chosen)]
    if params == indices == label_sharded(0) and counts_samples(view.values[1], extent, column=True):
        return [None, label_sharded(0)], [label_sharded(0)]
    if indices.is_sharded and indices.axis < view.rank(1) - 1:
        return [REPLICATED, None], [indices]
    raise Unknown


def _find_entries(call: Call) -> Shapes:
    *lead, count = call.shape(1)
    return [lead + call.shape()[count:]] if isinstance(count, int) else []


add_rows(
    "GatherNd", label=_label_gather_nd, shape=_find_entries, copy=_count_in_parts(1, lambda call: 0, data=0)
)


def _label_scatter(view: View) -> Ruling:
    indices, updates = view.labels[:2]
    if are_together(indices, updates) and indices.axis == 0 and not view.depends_on_batch():
        return [None, None, REPLICATED], [PARTIAL_SUM]
    extent = view.out_shape()[0]
    if indices == updates == label_sharded(0) and counts_samples(view.values[0], extent, column=True):
        return [label_sharded(0), None, sizes(0)], [label_sharded(0)]
    raise Unknown


add_rows(
    "ScatterNd", label=_label_scatter, shape=shape_in(2), copy=_count_in_parts(0, lambda call: 0, count=2)
)


def _label_scatter_into(view: View) -> Ruling:
    into, indices, updates = view.labels
    if are_together(indices, updates) and indices.axis == 0 and not into.is_sharded:
        return [PARTIAL_SUM, None, None], [PARTIAL_SUM]
    raise Unknown


add_rows("TensorScatterAdd TensorScatterSub", label=_label_scatter_into, shape=keep_shape())
add_rows("TensorScatterUpdate TensorScatterMax TensorScatterMin MatrixSetDiagV3", shape=keep_shape())
add_rows(
    "InvertPermutation", shape=keep_shape(), numbers=lambda call, number: as_sizes(np.argsort(call.fixed(0)))
)


def _find_codes(call: Call) -> Terms:
    names = call.names()
    at, more = call.attr("axis") % (len(names) + 1), name_axes(1, len(names))
    return Terms([names], [names[:at] + more + names[at:]], new={more: call.item(1)}, sizes={1: more})


_codes = _count_in_parts(0, lambda call: call.attr("axis") % (call.rank() + 1), count=1)
add_rows("OneHot", terms=_find_codes, part=part_by_terms, copy=_codes)

_SEGMENTS = {
    "UnsortedSegmentSum": PARTIAL_SUM, "UnsortedSegmentMax": PARTIAL_MAX, "UnsortedSegmentMin": PARTIAL_MIN,
}  # fmt: skip


def _label_segments(view: View) -> Ruling:
    if (found := label_sums_at_places(view)) is not None:
        return found
    data, ids, rank = view.samples(), view.labels[1], view.rank(1)
    if data.axis >= rank and not ids.is_sharded and not ids.is_partial:
        return view.keep(data._replace(axis=data.axis - rank + 1))
    wants = view.align(data, {1: require(data.axis if data.axis < rank and not ids.is_partial else None)})
    if not view.depends_on_batch():
        return [*wants[:2], REPLICATED], [_SEGMENTS[view.type]]
    extent = require(view.out_shape()[0] if rank == 1 and data.blocks == 1 else None)
    chosen = are_chosen(view.values[1], extent)  # the backward pass of a choice of samples
    stays = view.values[0].dtype.is_floating and stays_in_parts(view.values[1], extent)
    if not chosen and (data.chosen or not stays):
        raise Unknown
    return [None, label_sharded(0, chosen=data.chosen), sizes(0)], [label_sharded(0)]


_count_segments = _count_in_parts(1, lambda call: 0, count=2)


def _copy_segments(call: ReplicaCall, given: list[Any]) -> list[Any]:
    """Return the sums, or NaN where a sample's entries are outside of this replica's part.

    A lookup has proved that none are, but on a GPU a lookup out of bounds is no error.
    """

    def make_checked(given: list[Any]) -> list[Any]:
        (found,) = call.make(given)
        outside = tf.reduce_any((given[1] < 0) | (given[1] >= tf.cast(given[2], given[1].dtype)))
        return [tf.where(outside, tf.constant(np.nan, found.dtype), found)]

    ids = call.values[1].label
    looked_up = ids.is_sharded and not ids.chosen and call.made[0][0].is_sharded
    return _count_segments(dataclasses.replace(call, make=make_checked) if looked_up else call, given)


_ROW: Any = {"label": _label_segments, "copy": _copy_segments}
_ROW |= {"shape": lambda call: [[call.item(2), *call.shape()[call.rank(1) :]]]}
add_rows(
    "UnsortedSegmentSum",
    part=lambda call, output, want, mesh: None if want.axis else [None, REPLICATED, sizes(0)],
    **_ROW,
)
add_rows("UnsortedSegmentMax UnsortedSegmentMin", **_ROW)


def _label_bins(view: View) -> Ruling:
    label, rank = view.samples(), view.rank()
    if view.type == "DenseBincount" and view.shape(2) == [0]:  # without weights
        if rank == 1 and not view.attr("binary_output"):
            return view.keep(PARTIAL_SUM)
        if rank == 2 and label.axis == 0:
            return view.keep(label)
    raise Unknown


add_rows("DenseBincount", label=_label_bins, shape=lambda call: [[*call.shape()[:-1], call.item(1)]])


def _find_origin(tensor: Any) -> Any:
    """Return the tensor that is true in the same places, before changes of shape and type that keep numbers in order."""
    while row_of(tensor.op).progression is keep_progression and tensor.op.inputs[0].dtype in (
        tensor.dtype,
        tf.bool,
    ):
        tensor = tensor.op.inputs[0]
    return tensor


def _label_where(view: View) -> Ruling:
    if view.samples() != label_sharded(0) or view.rank() != 1 or not view.mesh.of_batch:
        raise Unknown
    extent = require(view.shape()[0])
    chosen = id(view.value_of(_find_origin(view.op.inputs[0]))), extent  # where the same is true
    return [None], [label_sharded(0, chosen=chosen)]


def _copy_where(call: ReplicaCall, given: list[Any]) -> list[Any]:
    """Return the positions in the batch."""
    (found,) = call.make(given)
    divided = call.made[0][0].is_sharded
    return [found + find_start(extent_of(given[0], 0), found.dtype, call.places[0]) if divided else found]


_WHERE: Any = {"label": _label_where, "progression": lambda call, shape: CHOSEN if call.rank() == 1 else None}
add_rows("Where", **_WHERE, copy=_copy_where)
