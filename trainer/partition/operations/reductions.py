"""Reductions, and scans along an axis."""

import math
from collections.abc import Callable
from typing import Any

from ..labels import OPEN, PARTIAL_MAX, PARTIAL_MEAN, PARTIAL_MIN, PARTIAL_SUM
from ..sizes.bounds import Interval, bound_by, keep_bounds, largest_count
from ..sizes.size import largest, smallest
from ..sizes.size_arrays import product
from .call import Call, Ruling, View, keep_shape, name_axes
from .number_rules import add, both, either, move_elements, reduce_elements
from .row import ORDERS, add_rows
from .samples import of_each_sample
from .shares import divide_largest, divide_mean, divide_softmax
from .terms import Terms


def _find_terms(call: Call, reduced: Any = None, keeps: bool = False) -> Terms:
    """Return the terms of a reduction: the axes that it drops are missing, those that it keeps have extent 1.

    It may not be known of an axis of a broadcast gradient whether it is summed.
    """
    names, more = call.names(), name_axes(call.rank(), call.rank())
    sums = call.values[1].sums if keeps else ()
    axes = () if sums else call.axes(1)
    sums = sums or [axis in axes for axis in range(len(names))]
    unknown = [axis for axis, summed in enumerate(sums) if summed is None]
    ends = [("1" if keeps else "") if summed else name for name, summed in zip(names, sums)]
    out = "".join(more[axis] if axis in unknown else end for axis, end in enumerate(ends))
    mixed, new = "".join(names[axis] for axis in unknown), dict.fromkeys(more[axis] for axis in unknown)
    return Terms([names], [out], mixed, reduced, new)


def _add_reduction(name: str, reduced: Any = None, **fields: Any) -> None:
    """Add a row of a reduction; `reduced` is the label of one over the samples."""

    def find_terms(call: Call) -> Terms:
        rounds = name == "Mean" and call.values[0].dtype.is_integer
        return _find_terms(call, None if rounds else reduced, call.attr("keep_dims"))

    add_rows(name, terms=find_terms, **fields)


def _bound_sum(call: Call) -> Interval:
    """Return the bounds of a sum over any axes, which has at most as many terms as the tensor."""
    (low, high), shape = call.values[0].interval, call.values[0].shape
    most = math.inf if shape is None else largest_count(product(shape))
    return (low * most if low < 0 else 0), (high * most if high > 0 else 0)


def _label_mean(view: View) -> Ruling | None:
    sums = view.labels[0] == PARTIAL_SUM and not view.values[0].dtype.is_integer
    return view.keep(PARTIAL_SUM) if sums else None


def _label_product(view: View) -> Ruling | None:
    label = view.labels[0]  # of an extent and of sizes that are the same everywhere
    counts = label.is_sizes and label.chosen not in (None, OPEN) and not view.attr("keep_dims")
    return ([None, None], [PARTIAL_SUM]) if counts else None


_SUM: Any = {"bounds": _bound_sum, "passes": [PARTIAL_SUM]}
_SUM |= {"unchanged": lambda call: not call.constant(1).size}  # backward passes have many sums over no axes
_add_reduction("Sum", PARTIAL_SUM, numbers=reduce_elements(add, 0), **_SUM)
_add_reduction("Mean", PARTIAL_MEAN, label=_label_mean, bounds=keep_bounds(), rewrite=divide_mean)
_add_reduction("Max", PARTIAL_MAX, passes=[PARTIAL_MAX], numbers=reduce_elements(largest, None))
_add_reduction("Min", PARTIAL_MIN, passes=[PARTIAL_MIN], numbers=reduce_elements(smallest, None))
_add_reduction("Any", PARTIAL_MAX, passes=[PARTIAL_MAX], numbers=reduce_elements(either, False))
_add_reduction("All", PARTIAL_MIN, passes=[PARTIAL_MIN], numbers=reduce_elements(both, True))
_add_reduction("Prod", label=_label_product, numbers=reduce_elements(lambda x, y: product([x, y]), 1))
_add_reduction("EuclideanNorm")
add_rows("ArgMax", terms=_find_terms, rewrite=divide_largest)
add_rows("ArgMin", terms=_find_terms)
add_rows("L2Loss", terms=lambda call: Terms([call.names()], [""], reduced=PARTIAL_SUM))


def _mix_axes(number: int) -> Callable[[Call], Terms]:
    """Return the terms of an operation that mixes the axes which its input of this number names."""

    def find_terms(call: Call) -> Terms:
        names = call.names()
        return Terms([names], [names], "".join(names[axis] for axis in call.axes(number)))

    return find_terms


_SCAN: Any = {"terms": _mix_axes(1), "shape": keep_shape(), "reason": ORDERS}
add_rows("Cumsum", **_SCAN, passes=[PARTIAL_SUM])
add_rows("Cumprod CumulativeLogsumexp", **_SCAN)
add_rows("ReverseV2", **_SCAN, passes=[PARTIAL_SUM], numbers=move_elements(), bounds=keep_bounds())
add_rows("Roll", terms=_mix_axes(2), shape=keep_shape(), passes=[PARTIAL_SUM], reason=ORDERS)
add_rows("Softmax", terms=of_each_sample(0, last=1, same=True), bounds=bound_by(0, 1), rewrite=divide_softmax)
add_rows("LogSoftmax", terms=of_each_sample(0, last=1, same=True), rewrite=divide_softmax)
add_rows("TopKV2", terms=of_each_sample(0, last=1), reason=ORDERS)
add_rows("Unique UniqueV2", reason=ORDERS)
add_rows("NthElement", terms=of_each_sample(0, last=1))
add_rows("MatrixBandPart", terms=of_each_sample(0, last=2, same=True), passes=[PARTIAL_SUM])
