"""Reductions, arg-reductions, scans along an axis."""

from __future__ import annotations

from ..labels import PARTIAL_MAX, PARTIAL_MIN, PARTIAL_SUM, REPLICATED, Label, is_sharded
from ..program import varying_axes
from .view import PARTIAL_MEAN, Ruling, View, rule

_PARTIAL = {
    "Sum": PARTIAL_SUM, "Mean": PARTIAL_MEAN, "Max": PARTIAL_MAX, "Any": PARTIAL_MAX, "Min": PARTIAL_MIN, "All": PARTIAL_MIN,
}  # fmt: skip


@rule("Sum", "Mean", "Max", "Min", "Any", "All", "Prod", "EuclideanNorm")
def _reduce(view: View) -> Ruling:
    label, axes, kind = view.labels[0], view.axes(1, view.rank(0)), view.type
    rounds = kind == "Mean" and view.op.inputs[0].dtype.is_integer
    if label.kind == "sizes" and kind == "Prod" and label.chosen and not view.attr("keep_dims"):
        return [None, None], [PARTIAL_SUM]  # of an extent and of sizes that are the same everywhere
    if label == PARTIAL_SUM and kind in ("Sum", "Mean") and not rounds:
        return view.kept(PARTIAL_SUM)
    if label in (PARTIAL_MAX, PARTIAL_MIN) and _PARTIAL.get(kind) == label:
        return view.kept(label)
    if not is_sharded(label) or axes is None or label.counts:
        return view.gathered()
    if label.axis in axes:
        partial = _PARTIAL.get(kind)
        if partial is None or rounds or (kind == "Mean" and label.chosen):
            return view.gathered()
        return view.kept(partial)
    kept = view.attr("keep_dims")
    axis = label.axis if kept else label.axis - sum(each < label.axis for each in set(axes))
    return view.kept(label._replace(axis=axis))


@rule("L2Loss")
def _l2_loss(view: View) -> Ruling:
    return ([None], [PARTIAL_SUM]) if is_sharded(view.labels[0]) else view.gathered()


@rule("ArgMax", "ArgMin")
def _arg_reduce(view: View) -> Ruling:
    label, axes = view.labels[0], view.axes(1, view.rank(0))
    if not is_sharded(label) or not axes or label.axis in axes:
        return view.gathered()
    return view.kept(label._replace(axis=label.axis - (axes[0] < label.axis), counts=False))


@rule("Cumsum", "Cumprod", "ReverseV2")
def _along_axes(view: View) -> Ruling:
    label, axes = view.labels[0], view.axes(1, view.rank(0))
    if label == PARTIAL_SUM and view.type != "Cumprod":
        return view.kept(label)
    if not is_sharded(label) or axes is None or label.axis in axes:
        return view.gathered()
    return view.kept(label)


@rule("Softmax", "LogSoftmax", "TopKV2", "InTopKV2", "NthElement")
def _along_last(view: View) -> Ruling:
    if view.type == "InTopKV2":
        return samples_together(view, (0, 1))
    label, rank = view.labels[0], view.rank(0)
    if not is_sharded(label) or rank is None or label.axis == rank - 1:
        return view.gathered()
    others = [REPLICATED] * (len(view.labels) - 1)
    return [None, *others], [label._replace(counts=False)] * len(view.op.outputs)


def samples_together(view: View, batched: tuple[int, ...], outputs: list[Label] | None = None) -> Ruling:
    """The rule of an operation on each sample alone, with the batch as axis 0 of the inputs `batched`.

    Args:
        view: of the operation.
        batched: numbers of the inputs that have samples.
        outputs: the labels of the outputs; None: SHARDED along axis 0 where the output has axes.
    """
    labels = [view.labels[number] for number in batched]
    leads = [label for label in labels if is_sharded(label)]
    if any(label != leads[0] for label in leads):
        leads = [view.labels[n] for n in batched if is_sharded(view.labels[n]) and not view.values[n].free]
    if not leads or any(label._replace(axis=0) != leads[0] or label.counts for label in leads):
        return view.gathered()
    others = [number for number in batched if view.labels[number] != leads[0]]
    if others and (leads[0].chosen or any(0 not in (varying_axes(view.shapes(n)) or ()) for n in others)):
        return view.gathered()
    wants = [leads[0] if number in batched else REPLICATED for number in range(len(view.labels))]
    made = outputs or [leads[0] if shapes[0] != [] else REPLICATED for shapes in view.out_shapes]
    return list(wants), made


@rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def _cross_entropy(view: View) -> Ruling:
    return samples_together(view, (0, 1))
