"""Gathers and scatters, one-hot codes, segments, tables, data-dependent choices.

Each replica can count positions that are computed from the batch size from its own first sample.
"""

from typing import Any

from ..labels import (
    PARTIAL_MAX,
    PARTIAL_MIN,
    PARTIAL_SUM,
    REPLICATED,
    are_together,
    is_partial,
    is_sharded,
    label_sharded,
    label_within,
    sizes,
)
from ..sizes.size import Extent, per_sample
from .view import Gather, Ruling, View, require_known, rule


def _chooses_samples(view: View, axis: int) -> bool:
    """Return whether the second input has positions of samples along the sharded axis of the first one."""
    params, indices = view.labels[:2]
    plain = is_sharded(params) and params.axis == axis and params.blocks == 1 and not params.chosen
    return plain and is_sharded(indices) and view.shape(0)[axis] == indices.counts


@rule("GatherV2")
def _gather(view: View) -> Ruling:
    params, indices = view.labels[:2]
    (axis,), rank, batch = view.axes(2), view.rank(1), view.attr("batch_dims")
    extent = view.shape(0)[axis]
    if (
        is_sharded(params)
        and params.axis == axis
        and (rank, batch) == (1, 0)
        and _counts_samples(view, view.op.inputs[1], extent)
    ):
        return [None, label_sharded(0, counts=extent), REPLICATED], [params]  # all of them, in order
    if is_sharded(params) and params.axis == axis and _is_in_parts(view, batch, axis):
        return [None, label_within(extent), REPLICATED], [PARTIAL_SUM]
    if batch:
        if are_together(params, indices) and params.axis < batch and not indices.counts:
            return [None, None, REPLICATED], [params]
        raise Gather
    if is_sharded(params) and params.axis != axis:
        if is_sharded(indices) or is_partial(indices):
            raise Gather
        moved = rank - 1 if params.axis > axis else 0
        return view.keep(params._replace(axis=params.axis + moved))
    if _chooses_samples(view, axis):
        return [None, None, REPLICATED], [label_sharded(axis, chosen=indices.chosen)]
    if is_sharded(indices) and not indices.counts:
        return [REPLICATED, None, REPLICATED], [indices._replace(axis=axis + indices.axis)]
    if params == PARTIAL_SUM and not is_sharded(indices):
        return view.keep(PARTIAL_SUM)
    raise Gather


def _is_in_parts(view: View, batch: int, axis: int) -> bool:
    """Return whether a lookup finds what its part has, else 0: by parts of a model, or one entry of each sample."""
    params, indices = view.labels[:2]
    known = params.blocks == 1 and not params.chosen and (batch == axis if batch else not view.mesh.of_batch)
    numbers = view.values[0].dtype.is_floating or view.values[0].dtype.is_integer
    return known and numbers and (indices == REPLICATED or view.values[1].free)


@rule("ResourceGather")
def _gather_variable(view: View) -> Ruling:
    label = view.labels[1]
    return ([None, None], [label]) if is_sharded(label) else view.keep(REPLICATED)


@rule("GatherNd")
def _gather_nd(view: View) -> Ruling:
    params, indices = view.labels
    if _chooses_samples(view, 0):
        return [None, None], [label_sharded(0, chosen=indices.chosen)]
    extent = view.shape(0)[0]
    if params == indices == label_sharded(0) and _first_column_counts_samples(view, 1, extent):
        return [None, label_sharded(0, counts=extent, column=True)], [label_sharded(0)]
    if is_sharded(indices) and not indices.counts and indices.axis < view.rank(1) - 1:
        return [REPLICATED, None], [indices]
    raise Gather


@rule("ScatterNd")
def _scatter(view: View) -> Ruling:
    indices, updates = view.labels[:2]
    if are_together(indices, updates) and indices.axis == 0 and not view.depends_on_batch():
        return [None, None, REPLICATED], [PARTIAL_SUM]
    extent = view.out_shape()[0]
    if indices == updates == label_sharded(0) and _first_column_counts_samples(view, 0, extent):
        return [label_sharded(0, counts=extent, column=True), None, sizes(0)], [label_sharded(0)]
    raise Gather


@rule("TensorScatterAdd", "TensorScatterSub")
def _scatter_into(view: View) -> Ruling:
    into, indices, updates = view.labels
    if are_together(indices, updates) and indices.axis == 0 and not is_sharded(into):
        return [PARTIAL_SUM, None, None], [PARTIAL_SUM]
    raise Gather


@rule("OneHot")
def _one_hot(view: View) -> Ruling:
    label, at = view.samples(), view.attr("axis") % view.out_rank()
    return view.keep(label._replace(axis=label.axis + (at <= label.axis)))


_SEGMENTS = {
    "UnsortedSegmentSum": PARTIAL_SUM, "UnsortedSegmentMax": PARTIAL_MAX, "UnsortedSegmentMin": PARTIAL_MIN,
}  # fmt: skip


@rule(*_SEGMENTS)
def _segments(view: View) -> Ruling:
    data, ids, rank = view.samples(), view.labels[1], view.rank(1)
    if data.counts:
        raise Gather
    if data.axis >= rank and not is_sharded(ids) and not is_partial(ids):
        return view.keep(data._replace(axis=data.axis - rank + 1))
    together = are_together(data, ids)
    if together and data.axis < rank and not ids.counts and not view.depends_on_batch():
        return [None, None, REPLICATED], [_SEGMENTS[view.type]]
    extent = view.out_shape()[0]
    if together and rank == 1 and data.blocks == 1 and extent is not None:
        if ids.counts == extent:  # the backward pass of a choice of samples
            return [None, None, sizes(0)], [label_sharded(0)]
        if not ids.counts and not data.chosen and _are_in_parts_of_samples(view, 1, extent):
            return [None, label_sharded(0, counts=extent), sizes(0)], [label_sharded(0)]
    raise Gather


@rule("Bincount", "DenseBincount")
def _bin_count(view: View) -> Ruling:
    label, rank = view.samples(), view.rank(0)
    if view.type == "DenseBincount" and view.shape(2) == [0]:  # without weights
        if rank == 1 and not view.attr("binary_output"):
            return view.keep(PARTIAL_SUM)
        if rank == 2 and label.axis == 0:
            return view.keep(label)
    raise Gather


@rule("Where")
def _positions_of_true(view: View) -> Ruling:
    if view.samples() != label_sharded(0) or view.rank(0) != 1 or not view.mesh.of_batch:
        raise Gather
    extent = require_known(view.shape(0)[0])
    chosen = id(view.value_of(_origin(view.op.inputs[0]))), extent  # where the same is true
    return [None], [label_sharded(0, chosen=chosen, counts=extent)]


@rule("LookupTableFindV2")
def _look_up(view: View) -> Ruling:
    label = view.labels[1] if is_sharded(view.labels[1]) else REPLICATED
    return [None, label, REPLICATED], [label]


_SAME_NUMBERS = ("Identity", "Cast", "StopGradient", "Reshape", "ExpandDims")


def _origin(tensor: Any) -> Any:
    """Return the tensor that has the same numbers in the same order, before changes of shape or dtype."""
    while tensor.op.type in _SAME_NUMBERS:
        tensor = tensor.op.inputs[0]
    return tensor


def _multiple(view: View, tensor: Any) -> tuple[Extent, int] | None:
    """Return n and the step of a tensor `step * [0, 1, ..., n - 1]`, n being a multiple of the batch."""
    tensor = _origin(tensor)
    step = 1
    if tensor.op.type == "Mul":
        for factor, counted in (tensor.op.inputs, reversed(tensor.op.inputs)):
            value = view.constant_of(factor)
            if value is None or value.ndim or not isinstance(value.item(), int):
                continue
            if _origin(counted).op.type == "Range":
                step, tensor = value.item(), _origin(counted)
                break
    if tensor.op.type != "Range":
        return None
    first, limit, delta = (view.constant_of(each) for each in tensor.op.inputs)
    if first is None or limit is None or delta is None:
        return None
    return (limit.item(), step) if first == 0 and delta == 1 and per_sample(limit.item()) else None


def _counts_samples(view: View, tensor: Any, extent: Extent) -> bool:
    """Return whether a tensor is `[0, 1, ..., n - 1]`, n being this extent of an axis with samples."""
    return _multiple(view, tensor) == (extent, 1)


def _first_column_counts_samples(view: View, number: int, extent: Extent) -> bool:
    """Return whether the first column of an input, a matrix, is `[0, 1, ..., n - 1]`."""
    packed = view.op.inputs[number]
    while packed.op.type in ("Identity", "Cast"):
        packed = packed.op.inputs[0]
    op = packed.op
    if view.rank(number) != 2 or op.type not in ("Pack", "ConcatV2"):
        return False
    columns = view.value_of(op.inputs[0])
    if columns is None or columns.shape is None or columns.shape[0] != extent:
        return False
    if op.type == "ConcatV2":
        axis = view.constant_of(op.inputs[len(op.inputs) - 1])
        if axis is None or axis.item() % 2 != 1 or columns.shape[1:] != [1]:
            return False
    elif op.get_attr("axis") % 2 != 1:
        return False
    return _counts_samples(view, op.inputs[0], extent)


def _are_in_parts_of_samples(view: View, number: int, extent: Extent) -> bool:
    """Return whether each sample has a part of this extent that contains the positions of its own entries.

    This holds in the backward pass of a gather with `batch_dims`: `k * [0, ..., n - 1]` is added to positions in `range(k)`.
    """
    added = _origin(view.op.inputs[number])
    if added.op.type != "AddV2":
        return False
    for offset, within in (added.op.inputs, reversed(added.op.inputs)):
        found = _multiple(view, offset)
        if found is None or found[0] is None or found[0] * found[1] != extent:
            continue
        if any(use.type == "GatherV2" and use.get_attr("batch_dims") and use.inputs[1] is within
               for use in within.consumers()):  # fmt: skip
            return True
    return False
