"""Positions of ragged values, which count from the first value of their replica; offsets are the first ones of samples."""

from ..labels import (
    REPLICATED,
    Label,
    is_places,
    label_offsets,
    label_places,
    label_sharded,
    sizes,
)
from ..sizes.size_arrays import Unknown
from .call import Ruling, View, require


def entries_of(label: Label) -> Label:
    """Return the label of numbers that count from nothing, one for each of these positions."""
    return label_sharded(0, chosen=label.chosen.of)


def label_some_offsets(view: View) -> Ruling:
    """Label where values of samples begin, or end, in a slice of their offsets; the first one, and how many there are."""
    values = view.labels[0].chosen
    if (
        view.shape(1) != [1]
        or view.attr("new_axis_mask")
        or view.attr("ellipsis_mask")
        or view.fixed(3)[0] != 1
    ):
        raise Unknown
    first = 0 if view.attr("begin_mask") else view.fixed(1)[0]
    if view.attr("shrink_axis_mask"):
        made = {0: REPLICATED, -1: sizes(0, values)}
        return view.keep(require(made.get(view.fixed(1)[0])))
    last = None if view.attr("end_mask") else view.fixed(2)[0]
    places = label_places(values)
    found = {(0, None): label_offsets(values), (1, None): places, (0, -1): places}
    return view.keep(require(found.get((first, last))))


def label_sum_of_places(view: View) -> Ruling | None:
    """Label positions to which numbers are added; None: there are none."""
    places = [number for number, label in enumerate(view.labels) if is_places(label)]
    return _label_moved(view, *places[:2]) if places else None


def label_difference(view: View) -> Ruling | None:
    """Label the difference of two positions, or of positions and numbers."""
    places, other = view.labels
    if is_places(places) and other == places:
        return [None, None], [entries_of(places)]
    return _label_moved(view, 0) if is_places(places) else None


def _label_moved(view: View, number: int, *more: int) -> Ruling:
    moved, (label, value) = view.labels[number], [*zip(view.labels, view.values)][1 - number]
    same = label == REPLICATED and value.shape in ([], [1])
    if more or not (same or label == entries_of(moved)):
        raise Unknown
    return [None, None], [moved]


def label_one_of_places(view: View) -> Ruling | None:
    """Label one of two positions."""
    place, other = view.labels
    return ([None, None], [place]) if is_places(place) and other == place else None


def label_found_values(view: View) -> Ruling | None:
    """Label the ragged values at some positions; None: there are none."""
    values, places = view.labels[:2]
    if not is_places(places) or values != label_sharded(0, chosen=places.chosen.values):
        return None
    if view.rank(1) != 1 or view.axes(2) != [0] or view.attr("batch_dims"):
        raise Unknown
    return [None, None, REPLICATED], [entries_of(places)]


def label_sums_at_places(view: View) -> Ruling | None:
    """Label sums of what belongs to some positions, for all ragged values; None: there are none."""
    data, places, count = view.labels
    if not is_places(places):
        return None
    values = places.chosen.values
    if view.rank(1) != 1 or data != entries_of(places) or count != sizes(0, values):
        raise Unknown
    return [None, None, None], [label_sharded(0, chosen=values)]
