"""Matrix products, convolutions and other operations on each sample alone."""

from __future__ import annotations

from ..labels import PARTIAL_SUM, REPLICATED, Label, is_sharded, same_samples, sharded, sizes
from ..program import varying_axes
from .reductions import samples_together
from .view import Ruling, View, Wants, rule


def contraction(view: View, terms: list[str], result: str) -> Ruling:
    """The rule of a product in the notation of einsum: a letter for each axis of each term and of the result.

    Upper-case letters are axes of extent 1 that are broadcast.
    """
    at = [terms[n][label.axis] if is_sharded(label) else "" for n, label in enumerate(view.labels)]
    order = sorted(range(len(at)), key=lambda number: (view.values[number].free, at[number] not in result))
    kept = next((at[number] for number in order if at[number]), "")
    if any(label.counts for label in view.labels):
        return view.gathered()
    if not kept:
        sums = [n for n, label in enumerate(view.labels) if label == PARTIAL_SUM]
        wants: Wants = [PARTIAL_SUM if n in sums[:1] else REPLICATED for n in range(len(terms))]
        return wants, [PARTIAL_SUM if sums else REPLICATED]
    lead = view.labels[next(number for number in order if at[number] == kept)]
    wants = []
    for number, (label, term) in enumerate(zip(view.labels, terms)):
        axis = term.find(kept)
        if axis < 0:
            wants.append(REPLICATED)
        elif is_sharded(label) and label.axis == axis and same_samples(label, lead):
            wants.append(None)
        elif lead.chosen:
            return view.gathered()
        elif axis in (varying_axes(view.shapes(number)) or ()):
            wants.append(sharded(axis, lead.blocks))
        else:
            return view.gathered()
    made = lead._replace(axis=result.index(kept)) if kept in result else PARTIAL_SUM
    return wants, [made]


@rule("MatMul")
def _matrix_product(view: View) -> Ruling:
    one = "ki" if view.attr("transpose_a") else "ik"
    other = "jk" if view.attr("transpose_b") else "kj"
    return contraction(view, [one, other], "ij")


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _batched_product(view: View) -> Ruling:
    shapes = [shape for shape in (view.shapes(0)[0], view.shapes(1)[0]) if shape is not None]
    if len(shapes) < 2:
        return view.gathered()
    most = max(len(shapes[0]), len(shapes[1])) - 2
    letters = "abcdefgh"[:most]
    ends = ["ki" if view.attr("adj_x") else "ik", "jk" if view.attr("adj_y") else "kj"]
    terms = []
    for shape, end in zip(shapes, ends):
        own = letters[most - len(shape) + 2 :]
        terms.append("".join(c.upper() if d == 1 else c for c, d in zip(own, shape)) + end)
    used = terms[0][:-2] + terms[1][:-2]
    return contraction(view, terms, "".join(c if c in used else c.upper() for c in letters) + "ij")


@rule("Einsum")
def _einsum(view: View) -> Ruling:
    left, _, result = view.attr("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if "..." in left:
        ranks = [view.rank(number) for number in range(len(terms))]
        if None in ranks:
            return view.gathered()
        hidden = [(rank or 0) - len(term) + 3 if "..." in term else 0 for rank, term in zip(ranks, terms)]
        names = "αβγδεζηθ"[: max(hidden)]
        terms = [term.replace("...", names[len(names) - count :]) for term, count in zip(terms, hidden)]
        result = result.replace("...", names)
    if any(len(set(term)) < len(term) for term in [*terms, result]):
        return view.gathered()
    return contraction(view, terms, result)


@rule("BiasAdd", "BiasAddGrad")
def _bias(view: View) -> Ruling:
    label, rank = view.labels[0], view.rank(0)
    channels = 1 if view.attr("data_format") == "NCHW" else (rank or 0) - 1
    of_gradient: Ruling = [None], [PARTIAL_SUM]
    if view.type == "BiasAddGrad" and label == PARTIAL_SUM:
        return of_gradient
    if not is_sharded(label) or rank is None or label.axis == channels:
        return view.gathered()
    return of_gradient if view.type == "BiasAddGrad" else view.kept(label)


EACH_SAMPLE = {  # numbers of the inputs that have samples along axis 0
    (0,): """
        Conv2D DepthwiseConv2dNative Conv3D Conv MaxPool AvgPool MaxPool3D AvgPool3D MaxPoolV2 ResizeBilinear
        ResizeBicubic ResizeNearestNeighbor ResizeArea SpaceToDepth DepthToSpace LRN ExtractImagePatches
        MatrixInverse Cholesky MatrixDeterminant AdjustContrastv2 AdjustHue
        AdjustSaturation RGBToHSV HSVToRGB Dilation2D Qr MatrixDiagPartV3 FFT IFFT FFT2D IFFT2D RFFT IRFFT
    """,
    (0, 1): "ResizeBilinearGrad ResizeBicubicGrad MatrixSolve MatrixTriangularSolve",
    (0, 1, 2): "MaxPoolGrad MaxPool3DGrad LRNGrad",
}  # fmt: skip
_SPATIAL = ("MatrixInverse", "Cholesky", "MatrixDeterminant", "Qr", "MatrixDiagPartV3", "MatrixSolve",
            "MatrixTriangularSolve", "FFT", "IFFT", "FFT2D", "IFFT2D", "RFFT", "IRFFT")  # fmt: skip


@rule(*" ".join(EACH_SAMPLE.values()).split())
def _each_sample(view: View) -> Ruling:
    if view.type in _SPATIAL and (view.rank(0) or 0) < 3:
        return view.gathered()
    return samples_together(view, next(n for n, types in EACH_SAMPLE.items() if view.type in types.split()))


@rule("ImageProjectiveTransformV3")
def _projected(view: View) -> Ruling:
    one, other = view.shapes(1)  # a transform for each sample, or one for all
    of_each = one is None or other is None or one[0] != other[0]
    return samples_together(view, (0, 1) if of_each else (0,))


@rule("SpaceToBatchND", "BatchToSpaceND")
def _space_and_batch(view: View) -> Ruling:
    label, extents = view.labels[0], view.fixed(1)
    if not is_sharded(label) or label.axis != 0 or extents is None or label.chosen:
        return view.gathered()
    times = int(extents.prod())  # the batch comes once for each place in a block
    if view.type == "BatchToSpaceND" and label.blocks % times:
        return view.gathered()
    blocks = label.blocks * times if view.type == "SpaceToBatchND" else label.blocks // times
    return view.kept(label._replace(blocks=blocks))


_SIZES_OF_INPUT = {  # the number of the gradient, next to the sizes of the input
    "Conv2DBackpropInput": 2, "DepthwiseConv2dNativeBackpropInput": 2, "Conv3DBackpropInputV2": 2, "AvgPoolGrad": 1,
    "AvgPool3DGrad": 1,
}  # fmt: skip


@rule(*_SIZES_OF_INPUT)
def _input_gradient(view: View) -> Ruling:
    wants, made = samples_together(view, (_SIZES_OF_INPUT[view.type],))
    if is_sharded(made[0]):
        wants[0] = sizes(0)
        if made[0].chosen:
            return view.gathered()
    return wants, made


@rule("ResizeNearestNeighborGrad")
def _resize_gradient(view: View) -> Ruling:
    return samples_together(view, (0,))


@rule("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "Conv3DBackpropFilterV2")
def _filter_gradient(view: View) -> Ruling:
    return samples_together(view, (0, 2), [PARTIAL_SUM])


@rule("FusedBatchNormV3")
def _batch_normalization(view: View) -> Ruling:
    if view.attr("is_training"):
        return view.gathered()
    found = samples_together(view, (0,))
    made: list[Label] = found[1]
    return found[0], [made[0], *[REPLICATED] * (len(view.op.outputs) - 1)]
