"""Gathers and scatters, one-hot codes, segments, tables, data-dependent choices.

Each replica can count positions that are computed from the batch size from its own first sample.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..conversions import where
from ..labels import (
    PARTIAL_MAX,
    PARTIAL_MIN,
    PARTIAL_SUM,
    REPLICATED,
    Label,
    are_together,
    is_partial,
    is_sharded,
    label_sharded,
    label_within,
    sizes,
)
from ..sizes.intervals import Interval
from ..sizes.positions import counts_samples, stays_in_parts
from ..sizes.size import per_sample
from ..sizes.size_arrays import Unknown
from .call import Call, Ruling, Shapes, View, keep_shape, name_axes, require, shape_in
from .number_rules import move_elements
from .row import add_rows, is_any, row_of
from .terms import FIRST, Terms


def _chooses_samples(view: View, axis: int) -> bool:
    """Return whether the second input has positions of samples along the sharded axis of the first one."""
    params, indices = view.labels[:2]
    plain = is_sharded(params) and params.axis == axis and params.blocks == 1 and not params.chosen
    return plain and is_sharded(indices) and view.shape()[axis] == indices.counts


def _find_gathered(call: Call) -> Terms:
    batch, names, (axis,) = call.attr("batch_dims"), name_axes(call.rank()), call.axes(2)
    indices = names[:batch] + name_axes(call.rank(1) - batch, len(names))
    return Terms([names, indices], [names[:axis] + indices[batch:] + names[axis + 1 :]], names[axis])


def _label_gather(view: View) -> Ruling | None:
    params, indices = view.labels[:2]
    (axis,), rank, batch = view.axes(2), view.rank(1), view.attr("batch_dims")
    extent = view.shape()[axis]
    if is_sharded(params) and params.axis == axis:
        if (rank, batch) == (1, 0) and counts_samples(view.values[1], extent):
            return [None, label_sharded(0, counts=extent), REPLICATED], [params]  # all of them, in order
        if _is_in_parts(view, batch, axis, extent):
            return [None, label_within(extent), REPLICATED], [PARTIAL_SUM]
    if not batch and _chooses_samples(view, axis):
        return [None, None, REPLICATED], [label_sharded(axis, chosen=indices.chosen)]
    if is_sharded(indices) and indices.counts:
        raise Unknown
    return None


def _is_in_parts(view: View, batch: int, axis: int, extent: Any) -> bool:
    """Return whether a lookup finds what its part has, else 0.

    It does by parts of a model, and where it takes one entry: of each sample, or of all of them.
    """
    params, indices = view.labels[:2]
    of_all = not view.mesh.of_batch or (view.rank(1) == 0 and per_sample(extent) is not None)
    known = params.blocks == 1 and not params.chosen and (batch == axis if batch else of_all)
    numbers = view.values[0].dtype.is_floating or view.values[0].dtype.is_integer
    return known and numbers and (indices == REPLICATED or view.values[1].free or is_partial(indices))


def _gather_numbers(call: Call, data: np.ndarray, indices: np.ndarray, axis: np.ndarray) -> np.ndarray:
    if call.attr("batch_dims") or np.any(indices < 0):
        raise Unknown
    return np.take(data, indices.astype(np.int64), int(axis))


def _bound_positions(call: Call) -> dict[int, Interval]:
    """Return the bounds of the positions of a lookup: others are an error."""
    extent = call.shape()[call.axes(2)[0]]
    return {1: (0, extent - 1)} if isinstance(extent, int) else {}


def _copy_lookup(
    values: Sequence[Any], given: list[Any], replica: Any, make: Callable[..., Any]
) -> list[Any]:
    """Return the entries that a part of a table has; 0 for those of other parts."""
    if not any(label.kind == "within" for label in values[1].labels):
        return make(given)
    table, rows, axis = given
    behind = (table.shape.rank or 0) - 1 - int(tf.get_static_value(axis)) % (table.shape.rank or 1)
    found = make([table, tf.where(rows == -1, tf.zeros_like(rows), rows), axis])
    return [where((rows != -1)[(..., *[tf.newaxis] * behind)], each) for each in found]


_LOOKUP: Any = {"terms": _find_gathered, "label": _label_gather, "linear": FIRST, "scales": is_any}
_LOOKUP |= {"asserts": _bound_positions, "copy": _copy_lookup, "positions": True}
add_rows("GatherV2", **_LOOKUP, numbers=move_elements(_gather_numbers))


def _find_rows(call: Call) -> Terms:
    """Return the terms of a lookup in a variable."""
    names, rank = name_axes(call.rank(1)), require(call.op.outputs[0].shape.rank)
    return Terms([None, names], [name_axes(rank)])


def _find_looked_up(call: Call) -> Terms:
    names = name_axes(call.rank(1))
    return Terms([None, names], [names])


add_rows("ResourceGather", terms=_find_rows)
add_rows("LookupTableFindV2", terms=_find_looked_up, harmless=True)


def _label_gather_nd(view: View) -> Ruling:
    params, indices = view.labels
    if _chooses_samples(view, 0):
        return [None, None], [label_sharded(0, chosen=indices.chosen)]
    extent = view.shape()[0]
    if params == indices == label_sharded(0) and counts_samples(view.values[1], extent, column=True):
        return [None, label_sharded(0, counts=extent, column=True)], [label_sharded(0)]
    if is_sharded(indices) and not indices.counts and indices.axis < view.rank(1) - 1:
        return [REPLICATED, None], [indices]
    raise Unknown


def _find_entries(call: Call) -> Shapes:
    *lead, count = call.shape(1)
    return [lead + call.shape()[count:]] if isinstance(count, int) else []


add_rows("GatherNd", label=_label_gather_nd, shape=_find_entries, positions=True)


def _label_scatter(view: View) -> Ruling:
    indices, updates = view.labels[:2]
    if are_together(indices, updates) and indices.axis == 0 and not view.depends_on_batch():
        return [None, None, REPLICATED], [PARTIAL_SUM]
    extent = view.out_shape()[0]
    if indices == updates == label_sharded(0) and counts_samples(view.values[0], extent, column=True):
        return [label_sharded(0, counts=extent, column=True), None, sizes(0)], [label_sharded(0)]
    raise Unknown


add_rows("ScatterNd", label=_label_scatter, shape=shape_in(2))


def _label_scatter_into(view: View) -> Ruling:
    into, indices, updates = view.labels
    if are_together(indices, updates) and indices.axis == 0 and not is_sharded(into):
        return [PARTIAL_SUM, None, None], [PARTIAL_SUM]
    raise Unknown


add_rows("TensorScatterAdd TensorScatterSub", label=_label_scatter_into, shape=keep_shape())
add_rows("TensorScatterUpdate TensorScatterMax TensorScatterMin MatrixSetDiagV3", shape=keep_shape())
add_rows("InvertPermutation", shape=keep_shape(), numbers=move_elements(lambda call, x: np.argsort(x), 0))


def _find_diagonals(call: Call) -> Terms:
    if any(call.fixed(n).ravel().tolist() != [default] for n, default in ((1, 0), (2, -1), (3, -1))):
        raise Unknown
    names = name_axes(call.rank() + 1)
    return Terms([names[:-1]], [names], names[-2:], new={names[-1]: call.shape()[-1]})


add_rows("MatrixDiagV3", terms=_find_diagonals)


def _find_codes(call: Call) -> Terms:
    names = name_axes(call.rank())
    at, more = call.attr("axis") % (len(names) + 1), name_axes(1, len(names))
    return Terms([names], [names[:at] + more + names[at:]], new={more: call.item(1)})


def _part_of_codes(call: Call, output: Any, want: Label, mesh: Any) -> Any:
    at = call.attr("axis") % len(output.shape)
    return [label_within(output.shape[at]), sizes(0), None, None] if at == want.axis else None


add_rows("OneHot", terms=_find_codes, part=_part_of_codes)

_SEGMENTS = {
    "UnsortedSegmentSum": PARTIAL_SUM, "UnsortedSegmentMax": PARTIAL_MAX, "UnsortedSegmentMin": PARTIAL_MIN,
}  # fmt: skip


def _label_segments(view: View) -> Ruling:
    data, ids, rank = view.samples(), view.labels[1], view.rank(1)
    if data.counts:
        raise Unknown
    if data.axis >= rank and not is_sharded(ids) and not is_partial(ids):
        return view.keep(data._replace(axis=data.axis - rank + 1))
    wants = view.align(data, {1: require(data.axis if data.axis < rank and not is_partial(ids) else None)})
    if not ids.counts and not view.depends_on_batch():
        return [*wants[:2], REPLICATED], [_SEGMENTS[view.type]]
    extent = require(view.out_shape()[0] if rank == 1 and data.blocks == 1 else None)
    if ids.counts == extent:  # the backward pass of a choice of samples
        return [None, None, sizes(0)], [label_sharded(0)]
    can_be_nan = view.values[0].dtype.is_floating
    if ids.counts or data.chosen or not can_be_nan or not stays_in_parts(view.values[1], extent):
        raise Unknown
    return [None, label_sharded(0, counts=extent), sizes(0)], [label_sharded(0)]


def _find_segments(call: Call) -> Shapes:
    return [[call.item(2), *call.shape()[call.rank(1) :]]]


def _part_of_segments(call: Call, output: Any, want: Label, mesh: Any) -> Any:
    return [None, label_within(output.shape[0]), sizes(0)] if want.axis == 0 else None


def _copy_segments(
    values: Sequence[Any], given: list[Any], replica: Any, make: Callable[..., Any]
) -> list[Any]:
    """Return the sums, or NaN where a sample's entries are outside of this replica's part.

    A lookup has proved that none are, but on a GPU a lookup out of bounds is no error.
    """
    (found,), label = make(given), values[1].label
    if not label.counts or label.chosen or not found.dtype.is_floating:
        return [found]
    outside = tf.reduce_any((given[1] < 0) | (given[1] >= tf.cast(given[2], given[1].dtype)))
    return [tf.where(outside, tf.constant(np.nan, found.dtype), found)]


_ROW: Any = {
    "label": _label_segments,
    "shape": _find_segments,
    "positions": True,
    "copy": _copy_segments,
}
add_rows("UnsortedSegmentSum", part=_part_of_segments, **_ROW)
add_rows("UnsortedSegmentMax UnsortedSegmentMin", **_ROW)


def _label_bins(view: View) -> Ruling:
    label, rank = view.samples(), view.rank()
    if view.type == "DenseBincount" and view.shape(2) == [0]:  # without weights
        if rank == 1 and not view.attr("binary_output"):
            return view.keep(PARTIAL_SUM)
        if rank == 2 and label.axis == 0:
            return view.keep(label)
    raise Unknown


def _find_bins(call: Call) -> Shapes:
    return [[*call.shape()[:-1], call.item(1)]]


add_rows("DenseBincount", label=_label_bins, shape=_find_bins)


def _find_origin(tensor: Any) -> Any:
    """Return the tensor that is true in the same places, before changes of shape."""
    while row_of(tensor.op).keeps_order or (
        tensor.op.type == "Cast" and tensor.op.inputs[0].dtype == tf.bool
    ):
        tensor = tensor.op.inputs[0]
    return tensor


def _label_where(view: View) -> Ruling:
    if view.samples() != label_sharded(0) or view.rank() != 1 or not view.mesh.of_batch:
        raise Unknown
    extent = require(view.shape()[0])
    chosen = id(view.value_of(_find_origin(view.op.inputs[0]))), extent  # where the same is true
    return [None], [label_sharded(0, chosen=chosen, counts=extent)]


def _copy_where(values: Sequence[Any], given: list[Any], replica: Any, make: Callable[..., Any]) -> list[Any]:
    """Return the positions, and note at which entry of the batch those of this replica begin."""
    made, label = make(given), values[-1].label
    if label.counts:
        extent, held = tf.size(given[0], tf.int64), tf.cast(replica.held, tf.int64)
        first = extent * tf.cast(replica.samples_before, tf.int64) // held
        replica.first_positions[label.chosen] = first
    return made


add_rows("Where", label=_label_where, copy=_copy_where)
