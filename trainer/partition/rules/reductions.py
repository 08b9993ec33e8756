"""Reductions, arg-reductions, scans along an axis."""

from __future__ import annotations

from ..labels import PARTIAL_MAX, PARTIAL_MIN, PARTIAL_SUM, REPLICATED, Label, is_sharded
from ..program import varying_axes
from .view import PARTIAL_MEAN, Gather, Ruling, View, rule

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
        return view.kept(PARTIAL_SUM)
    if label in (PARTIAL_MAX, PARTIAL_MIN) and _PARTIAL.get(kind) == label:
        return view.kept(label)
    label, axes = view.samples(), view.axes(1)
    if label.axis in axes:
        if kind not in _PARTIAL or rounds or (kind == "Mean" and label.chosen):
            raise Gather
        return view.kept(_PARTIAL[kind])
    kept = view.attr("keep_dims")
    axis = label.axis if kept else label.axis - sum(each < label.axis for each in set(axes))
    return view.kept(label._replace(axis=axis))


@rule("L2Loss")
def _l2_loss(view: View) -> Ruling:
    view.samples()
    return [None], [PARTIAL_SUM]


@rule("ArgMax", "ArgMin")
def _arg_reduce(view: View) -> Ruling:
    label, (axis,) = view.samples(), view.axes(1)
    if label.axis == axis:
        raise Gather
    return view.kept(label._replace(axis=label.axis - (axis < label.axis)))


@rule("Cumsum", "Cumprod", "ReverseV2")
def _along_axes(view: View) -> Ruling:
    if view.labels[0] == PARTIAL_SUM and view.type != "Cumprod":
        return view.kept(PARTIAL_SUM)
    label = view.samples()
    if label.axis in view.axes(1):
        raise Gather
    return view.kept(label)


@rule("Softmax", "LogSoftmax", "TopKV2", "InTopKV2", "NthElement")
def _along_last(view: View) -> Ruling:
    if view.type == "InTopKV2":
        return samples_together(view, (0, 1))
    label = view.samples()
    if label.axis == view.rank(0) - 1:
        raise Gather
    return view.kept(label)


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
    if not leads or any(label._replace(axis=0) != leads[0] for label in leads):
        raise Gather
    others = [number for number in batched if view.labels[number] != leads[0]]
    if others and (leads[0].chosen or any(0 not in (varying_axes(view.shapes(n)) or ()) for n in others)):
        raise Gather
    wants = [leads[0] if number in batched else REPLICATED for number in range(len(view.labels))]
    made = outputs or [leads[0] if shapes[0] != [] else REPLICATED for shapes in view.out_shapes]
    return list(wants), made


@rule("SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits")
def _cross_entropy(view: View) -> Ruling:
    return samples_together(view, (0, 1))
