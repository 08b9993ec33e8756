"""Sparse arrays, whose entries are those of a replica's samples: their places begin with the number of a sample."""

from collections.abc import Callable
from typing import Any

from ..conversions import count_in_batch, find_in_part
from ..labels import PARTIAL_SUM, REPLICATED, Label, Ragged, label_places, label_sharded, sizes
from ..sizes.positions import IN_COLUMN, are_chosen
from ..sizes.size import count_entries
from .call import Call, ReplicaCall, Ruling, Shapes, View, require, shape_in
from .row import add_rows


def _entries(view: View, places: int, values: int, shape: int) -> Label:
    """Return the label of the entries of a sparse array, of which these inputs are the places, the values and the shape."""
    label = view.labels[places]
    known = are_chosen(view.values[places], view.constant(shape)[0], column=True)
    return require(label if known and view.labels[values] == label else None)


def _count_in_part(
    places: int, shape: int, moved: bool = False
) -> Callable[[ReplicaCall, list[Any]], list[Any]]:
    """Return the `copy` of an operation with places, which count from the first sample of a replica.

    These inputs are the places and the shape. `moved`: whether the first output has places, too.
    """

    def copy(call: ReplicaCall, given: list[Any]) -> list[Any]:
        if not call.values[places].label.is_sharded:
            return call.make(given)
        own = find_in_part(given[places], given[shape][0], call.places[0], True)
        found = [*call.make([*given[:places], own, *given[places + 1 :]])]
        if moved:
            found[0] = count_in_batch(found[0], call.places[0])
        return found

    return copy


def _label_product(view: View) -> Ruling:
    _entries(view, 0, 1, 2)
    if not view.attr("adjoint_a"):
        return [None, None, sizes(0), REPLICATED], [label_sharded(0)]
    dense = label_sharded(0) if not view.attr("adjoint_b") and view.labels[3] == label_sharded(0) else None
    return [None, None, sizes(0), require(dense)], [PARTIAL_SUM]


def _find_product(call: Call) -> Shapes:
    samples, features = call.constant(2)
    columns = call.shape(3)[0 if call.attr("adjoint_b") else 1]
    return [[features if call.attr("adjoint_a") else samples, columns]]


add_rows("SparseTensorDenseMatMul", label=_label_product, shape=_find_product, copy=_count_in_part(0, 2))


def _label_dense(view: View) -> Ruling:
    _entries(view, 0, 2, 1)
    return [None, sizes(0), None, REPLICATED], [label_sharded(0)]


add_rows("SparseToDense", label=_label_dense, shape=shape_in(1), copy=_count_in_part(0, 1))


def _label_in_order(view: View) -> Ruling:
    label = _entries(view, 0, 1, 2)
    return [None, None, sizes(0)], [label, label]


add_rows(
    "SparseReorder",
    label=_label_in_order,
    shape=lambda call: [call.shape(0), call.shape(1)],
    progression=lambda call, shape: IN_COLUMN,
    copy=_count_in_part(0, 2, moved=True),
)


def _find_filled(call: Call) -> Shapes:
    entries = count_entries(call.constant(2)[0])
    return [[entries, call.shape()[1]], [entries], [call.constant(2)[0]], call.shape(1)]


def _label_filled(view: View) -> Ruling:
    """Label the entries of samples of which each has one, which samples had none, and where the entries are now."""
    entries = _entries(view, 0, 1, 2)
    filled = Ragged(require(view.out_shape(1)[0]), view.constant(2)[0], True)
    label = label_sharded(0, chosen=filled)
    return [None, None, sizes(0), REPLICATED], [
        label,
        label,
        label_sharded(0),
        label_places(filled, entries.chosen),
    ]


add_rows(
    "SparseFillEmptyRows",
    label=_label_filled,
    shape=_find_filled,
    progression=lambda call, shape: IN_COLUMN,
    copy=_count_in_part(0, 2, moved=True),
)


def _find_segments(call: Call) -> Shapes:
    chosen = call.values[1].label.chosen
    return [[chosen.samples if isinstance(chosen, Ragged) and chosen.filled else None, *call.shape()[1:]]]


def _label_segments(view: View) -> Ruling:
    """Label sums of each sample; the last one of those with a value is the last of all only if each has one."""
    data, ids = view.labels
    known = (
        isinstance(ids.chosen, Ragged)
        and ids.chosen.filled
        and are_chosen(view.values[1], ids.chosen.samples)
    )
    return [None, None], [require(label_sharded(0) if known and data == ids else None)]


def _copy_segments(call: ReplicaCall, given: list[Any]) -> list[Any]:
    if not call.values[1].label.is_sharded:
        return call.make(given)
    place = call.places[0]
    return call.make([given[0], find_in_part(given[1], place.held, place, True)])


add_rows("SegmentSum SegmentMean", label=_label_segments, shape=_find_segments, copy=_copy_segments)
