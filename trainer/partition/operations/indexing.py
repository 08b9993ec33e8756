"""Gathers and scatters, one-hot codes, segments, tables, data-dependent choices.

Positions count from the first sample of the batch. Where a replica has a part of what they name, `copy` counts them from its
own first sample.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..conversions import Replica, extent_of, find_in_part, find_start, where
from ..labels import (
    PARTIAL_MAX,
    PARTIAL_MIN,
    PARTIAL_SUM,
    REPLICATED,
    Label,
    Labels,
    are_together,
    is_partial,
    is_sharded,
    label_sharded,
    sizes,
)
from ..sizes.intervals import Interval
from ..sizes.positions import COUNT, are_chosen, counts_samples, stays_in_parts
from ..sizes.size_arrays import Unknown
from .call import Call, Ruling, Shapes, View, keep_shape, name_axes, require, shape_in
from .number_rules import move_elements
from .row import add_rows, is_any, row_of
from .terms import FIRST, Terms


def _chooses_samples(view: View, axis: int) -> bool:
    """Return whether the second input has positions of samples along the sharded axis of the first one."""
    params = view.labels[0]
    plain = is_sharded(params) and params.axis == axis and params.blocks == 1 and not params.chosen
    return plain and view.mesh.of_batch and are_chosen(view.values[1], view.shape()[axis])


def _count_from_part(
    positions: tf.Tensor, own: Labels, divided: Labels, axis: int, extent: Any, places: Sequence[Replica]
) -> tf.Tensor:
    """Return positions along an axis, counted from the start of this replica's part of it, which has this extent.

    Those of other parts are -1; there are none where replicas have parts of the positions, too. `own` are the labels of the
    positions, and `divided` those of the tensor with the axis. A row of positions begins with that along the axis.
    """
    for label, mine, place in zip(divided, own, places):
        if not is_sharded(label) or label.axis != axis:
            continue
        if not is_sharded(mine):
            positions = find_in_part(positions, extent, place)
        elif positions.shape.rank == 1:
            positions -= find_start(extent, positions.dtype, place)
        else:
            first = tf.one_hot(0, extent_of(positions, -1), dtype=positions.dtype)
            positions -= first * find_start(extent, positions.dtype, place)
    return positions


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
            return [None, label_sharded(0), REPLICATED], [params]  # all of them, in order
        if _is_in_parts(view, batch, axis):
            return [None, REPLICATED, REPLICATED], [PARTIAL_SUM]
    if not batch and _chooses_samples(view, axis):
        return [None, None, REPLICATED], [label_sharded(axis, chosen=indices.chosen)]
    return None


def _is_in_parts(view: View, batch: int, axis: int) -> bool:
    """Return whether a lookup finds what its part has, else 0: by parts of a model, or one entry of each sample."""
    params, indices = view.labels[:2]
    known = params.blocks == 1 and not params.chosen and (batch == axis if batch else not view.mesh.of_batch)
    numbers = view.values[0].dtype.is_floating or view.values[0].dtype.is_integer
    return known and numbers and (indices == REPLICATED or view.values[1].free)


def _gather_numbers(call: Call, data: np.ndarray, indices: np.ndarray, axis: np.ndarray) -> np.ndarray:
    if call.attr("batch_dims") or np.any(indices < 0):
        raise Unknown
    return np.take(data, indices.astype(np.int64), int(axis))


def _bound_positions(call: Call) -> dict[int, Interval]:
    """Return the bounds of the positions of a lookup: others are an error."""
    extent = call.shape()[call.axes(2)[0]]
    return {1: (0, extent - 1)} if isinstance(extent, int) else {}


def _copy_lookup(
    call: Call, made: Labels, given: list[Any], places: Sequence[Replica], make: Callable[..., Any]
) -> list[Any]:
    """Return the entries that a part of a table has; 0 for those of other parts."""
    (table, rows, axis), (params, indices, _) = given, call.values
    at = int(tf.get_static_value(axis)) % (table.shape.rank or 1)
    own = _count_from_part(rows, indices.labels, params.labels, at, extent_of(table, at), places)
    if PARTIAL_SUM not in made:
        return make([table, own, axis])
    found = make([table, tf.where(own == -1, tf.zeros_like(own), own), axis])
    behind = (table.shape.rank or 0) - 1 - at
    return [where((own != -1)[(..., *[tf.newaxis] * behind)], each) for each in found]


_LOOKUP: Any = {"terms": _find_gathered, "label": _label_gather, "linear": FIRST, "scales": is_any}
_LOOKUP |= {"asserts": _bound_positions, "copy": _copy_lookup}
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
        return [None, label_sharded(0)], [label_sharded(0)]
    if is_sharded(indices) and indices.axis < view.rank(1) - 1:
        return [REPLICATED, None], [indices]
    raise Unknown


def _find_entries(call: Call) -> Shapes:
    *lead, count = call.shape(1)
    return [lead + call.shape()[count:]] if isinstance(count, int) else []


def _copy_entries(
    call: Call, made: Labels, given: list[Any], places: Sequence[Replica], make: Callable[..., Any]
) -> list[Any]:
    data, rows = (value.labels for value in call.values)
    return make([given[0], _count_from_part(given[1], rows, data, 0, extent_of(given[0], 0), places)])


add_rows("GatherNd", label=_label_gather_nd, shape=_find_entries, copy=_copy_entries)


def _label_scatter(view: View) -> Ruling:
    indices, updates = view.labels[:2]
    if are_together(indices, updates) and indices.axis == 0 and not view.depends_on_batch():
        return [None, None, REPLICATED], [PARTIAL_SUM]
    extent = view.out_shape()[0]
    if indices == updates == label_sharded(0) and counts_samples(view.values[0], extent, column=True):
        return [label_sharded(0), None, sizes(0)], [label_sharded(0)]
    raise Unknown


def _copy_scatter(
    call: Call, made: Labels, given: list[Any], places: Sequence[Replica], make: Callable[..., Any]
) -> list[Any]:
    return make([_count_from_part(given[0], call.values[0].labels, made, 0, given[2][0], places), *given[1:]])


add_rows("ScatterNd", label=_label_scatter, shape=shape_in(2), copy=_copy_scatter)


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
    return [REPLICATED, sizes(0), None, None] if at == want.axis else None


def _copy_codes(
    call: Call, made: Labels, given: list[Any], places: Sequence[Replica], make: Callable[..., Any]
) -> list[Any]:
    at = call.attr("axis") % (call.rank() + 1)
    return make([_count_from_part(given[0], call.values[0].labels, made, at, given[1], places), *given[1:]])


add_rows("OneHot", terms=_find_codes, part=_part_of_codes, copy=_copy_codes)

_SEGMENTS = {
    "UnsortedSegmentSum": PARTIAL_SUM, "UnsortedSegmentMax": PARTIAL_MAX, "UnsortedSegmentMin": PARTIAL_MIN,
}  # fmt: skip


def _label_segments(view: View) -> Ruling:
    data, ids, rank = view.samples(), view.labels[1], view.rank(1)
    if data.axis >= rank and not is_sharded(ids) and not is_partial(ids):
        return view.keep(data._replace(axis=data.axis - rank + 1))
    wants = view.align(data, {1: require(data.axis if data.axis < rank and not is_partial(ids) else None)})
    if not view.depends_on_batch():
        return [*wants[:2], REPLICATED], [_SEGMENTS[view.type]]
    extent = require(view.out_shape()[0] if rank == 1 and data.blocks == 1 else None)
    chosen = are_chosen(view.values[1], extent)  # the backward pass of a choice of samples
    if not chosen and (data.chosen or not stays_in_parts(view.values[1], extent)):
        raise Unknown
    return [None, label_sharded(0, chosen=data.chosen), sizes(0)], [label_sharded(0)]


def _find_segments(call: Call) -> Shapes:
    return [[call.item(2), *call.shape()[call.rank(1) :]]]


def _part_of_segments(call: Call, output: Any, want: Label, mesh: Any) -> Any:
    return [None, REPLICATED, sizes(0)] if want.axis == 0 else None


def _copy_segments(
    call: Call, made: Labels, given: list[Any], places: Sequence[Replica], make: Callable[..., Any]
) -> list[Any]:
    data, ids, count = given
    return make([data, _count_from_part(ids, call.values[1].labels, made, 0, count, places), count])


_ROW: Any = {"label": _label_segments, "shape": _find_segments, "copy": _copy_segments}
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
    return [None], [label_sharded(0, chosen=chosen)]


def _copy_where(
    call: Call, made: Labels, given: list[Any], places: Sequence[Replica], make: Callable[..., Any]
) -> list[Any]:
    """Return the positions in the batch."""
    (found,) = make(given)
    if is_sharded(made[0]):
        found += find_start(extent_of(given[0], 0), found.dtype, places[0])
    return [found]


_WHERE: Any = {"label": _label_where, "progression": lambda call, shape: COUNT if call.rank() == 1 else None}
add_rows("Where", **_WHERE, copy=_copy_where)
