"""Reductions, arg-reductions, scans along an axis."""

from ..labels import PARTIAL_MAX, PARTIAL_MIN, PARTIAL_SUM
from .view import PARTIAL_MEAN, Gather, Ruling, View, require_known, rule

_PARTIAL = {
    "Sum": PARTIAL_SUM, "Mean": PARTIAL_MEAN, "Max": PARTIAL_MAX, "Any": PARTIAL_MAX, "Min": PARTIAL_MIN, "All": PARTIAL_MIN,
}  # fmt: skip


@rule("Sum", "Mean", "Max", "Min", "Any", "All", "Prod", "EuclideanNorm")
def _reduce(view: View) -> Ruling:
    label, kind = view.labels[0], view.type
    rounds = kind == "Mean" and view.op.inputs[0].dtype.is_integer
    if label.kind == "sizes" and kind == "Prod" and label.chosen and not view.attr("keep_dims"):
        return [None, None], [PARTIAL_SUM]  # of an extent and of sizes that are the same everywhere
    if label == PARTIAL_SUM and kind in ("Sum", "Mean") and not rounds:
        return view.keep(PARTIAL_SUM)
    if label in (PARTIAL_MAX, PARTIAL_MIN) and _PARTIAL.get(kind) == label:
        return view.keep(label)
    label, sums = view.samples(), view.values[1].sums
    if kind == "Sum" and sums and view.attr("keep_dims"):
        return view.keep(PARTIAL_SUM if require_known(sums[label.axis]) else label)
    axes = view.axes(1)
    if label.axis in axes:
        if kind not in _PARTIAL or rounds or (kind == "Mean" and label.chosen):
            raise Gather
        return view.keep(_PARTIAL[kind])
    return view.keep(label) if view.attr("keep_dims") else view.without_axes(axes)


@rule("L2Loss")
def _l2_loss(view: View) -> Ruling:
    view.samples()
    return [None], [PARTIAL_SUM]


@rule("ArgMax", "ArgMin")
def _arg_reduce(view: View) -> Ruling:
    return view.without_axes(view.axes(1))


_AXES = {"Cumsum": 1, "Cumprod": 1, "ReverseV2": 1, "Roll": 2}
"""The number of the input that names the axes."""
_LAST_AXES = {"Softmax": 1, "LogSoftmax": 1, "TopKV2": 1, "NthElement": 1, "MatrixBandPart": 2}


@rule(*_AXES, *_LAST_AXES)
def _along_axes(view: View) -> Ruling:
    if view.labels[0] == PARTIAL_SUM and view.type in ("Cumsum", "ReverseV2"):
        return view.keep(PARTIAL_SUM)
    rank = view.rank(0)
    axes = view.axes(_AXES[view.type]) if view.type in _AXES else range(rank - _LAST_AXES[view.type], rank)
    return view.keep(view.samples(0, axes))
