"""Positions of ragged values, which count from the first value of their replica; offsets are the first ones of samples."""

from ..labels import REPLICATED, Label, label_offsets, label_places, label_sharded, sizes
from ..sizes.size_arrays import Unknown
from .call import Ruling, View, require


def entries_of(label: Label) -> Label:
    """Return the label of numbers that count from nothing, one for each of these positions, or for what has offsets."""
    return label_sharded(0, chosen=label.chosen.of)


def label_some_offsets(view: View) -> Ruling:
    """Label where values of samples begin, or end, in a slice of their offsets; the first one, and how many there are."""
    values, owner = view.labels[0].chosen
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
    places = label_places(values, owner)
    found = {(0, None): label_offsets(values, owner), (1, None): places, (0, -1): places}
    return view.keep(require(found.get((first, last))))


def label_sum_of_places(view: View) -> Ruling | None:
    """Label positions to which numbers are added; None: there are none."""
    places = [number for number, label in enumerate(view.labels) if label.is_places]
    return _label_moved(view, *places[:2]) if places else None


def label_difference(view: View) -> Ruling | None:
    """Label the difference of two positions, or of positions and numbers; one less than the offsets is what has them."""
    places, other = view.labels
    if places.is_count:
        one = other == REPLICATED and view.values[1].constant is not None and view.constant(1).tolist() == 1
        return [None, None], [require(sizes(0, places.chosen.of) if one else None)]
    if places.is_places and other == places:
        return [None, None], [entries_of(places)]
    return _label_moved(view, 0) if places.is_places else None


def _label_moved(view: View, number: int, *more: int) -> Ruling:
    moved, (label, value) = view.labels[number], [*zip(view.labels, view.values)][1 - number]
    same = label == REPLICATED and value.shape in ([], [1])
    if more or not (same or label == entries_of(moved)):
        raise Unknown
    return [None, None], [moved]


def label_one_of_places(view: View) -> Ruling | None:
    """Label one of two positions, or the larger one of a position and 0."""
    place, other = view.labels
    kept = other == place or (view.type == "Maximum" and _is_compared_with_zero(view))
    return ([None, None], [place]) if place.is_places and kept else None


def label_not_negative(view: View) -> Ruling | None:
    """Label whether positions are at least 0; None: there are none."""
    return ([None, None], [entries_of(view.labels[0])]) if _is_compared_with_zero(view) else None


def _is_compared_with_zero(view: View) -> bool:
    """Return whether positions meet zeros: they are at least 0 wherever they count from."""
    (place, other), (positions, zeros) = view.labels, view.values
    alike = place.is_places and other in (REPLICATED, entries_of(place))
    return alike and positions.interval[0] >= 0 and zeros.interval == (0, 0)


def label_found_values(view: View) -> Ruling | None:
    """Label the ragged values at some positions, or offsets at other ones, as of two dimensions made one; None: neither."""
    values, places = view.labels[:2]
    if values.is_offsets and places.is_offsets and values.chosen.of == places.chosen.values:
        found = label_offsets(values.chosen.values, places.chosen.of)
    elif places.is_places and values == label_sharded(0, chosen=places.chosen.values):
        found = entries_of(places)
    else:
        return None
    if view.rank(1) != 1 or view.axes(2) != [0] or view.attr("batch_dims"):
        raise Unknown
    return [None, None, REPLICATED], [found]


def label_sums_at_places(view: View) -> Ruling | None:
    """Label sums of what belongs to some positions, for all ragged values; None: there are none."""
    data, places, count = view.labels
    if not places.is_places:
        return None
    values = places.chosen.values
    if view.rank(1) != 1 or data != entries_of(places) or count != sizes(0, values):
        raise Unknown
    return [None, None, None], [label_sharded(0, chosen=values)]
