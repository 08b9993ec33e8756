"""Matrix products, convolutions and other operations on each sample alone."""

from ..labels import PARTIAL_SUM, REPLICATED, Label, is_sharded, sizes
from ..sizes.extents import product_terms
from ..sizes.size import is_open
from .elementwise import is_factor
from .view import Gather, Ruling, View, Wants, rule


def contraction(view: View, terms: list[str], result: str) -> Ruling:
    """Label a product in the notation of einsum: a letter for each axis of each term and of the result.

    Upper-case letters are axes of extent 1 that are broadcast.
    """
    at = [terms[n][label.axis] if is_sharded(label) else "" for n, label in enumerate(view.labels)]
    order = sorted(range(len(at)), key=lambda number: (view.values[number].free, at[number] not in result))
    kept = next((at[number] for number in order if at[number]), "")
    if not kept:
        sums = [n for n, label in enumerate(view.labels) if label == PARTIAL_SUM]
        if not all(is_factor(value) for n, value in enumerate(view.values) if n not in sums[:1]):
            raise Gather
        wants: Wants = [PARTIAL_SUM if n in sums[:1] else REPLICATED for n in range(len(terms))]
        return wants, [PARTIAL_SUM if sums else REPLICATED]
    lead = view.labels[next(number for number in order if at[number] == kept)]
    made = lead._replace(axis=result.index(kept)) if kept in result else PARTIAL_SUM
    return view.align(lead, {n: term.find(kept) for n, term in enumerate(terms)}, equal=True), [made]


@rule("MatMul")
def _matrix_product(view: View) -> Ruling:
    return contraction(view, *product_terms(view.op, [2, 2]))


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def _multiply_batches(view: View) -> Ruling:
    terms, result = product_terms(view.op, [view.rank(0), view.rank(1)])
    for number, term in enumerate(terms):  # axes of extent 1 are broadcast
        own = zip(term[:-2], view.shape(number))
        terms[number] = "".join(c.upper() if d == 1 else c for c, d in own) + term[-2:]
    used = terms[0][:-2] + terms[1][:-2]
    return contraction(view, terms, "".join(c if c in used else c.upper() for c in result[:-2]) + "ij")


@rule("Einsum")
def _einsum(view: View) -> Ruling:
    terms, result = product_terms(view.op, [view.rank(n) for n in range(len(view.labels))])
    if any(len(set(term)) < len(term) for term in [*terms, result]):
        raise Gather
    return contraction(view, terms, result)


@rule("BiasAdd", "BiasAddGrad")
def _bias(view: View) -> Ruling:
    channels = 1 if view.attr("data_format") == "NCHW" else view.rank(0) - 1
    label = view.labels[0]
    if view.type == "BiasAddGrad":
        if label != PARTIAL_SUM and view.samples().axis == channels:
            return view.keep(label._replace(axis=0))
        return view.keep(PARTIAL_SUM)
    bias = view.labels[1]
    if is_sharded(label) and label.axis != channels:
        return view.keep(label)
    lead = label if is_sharded(label) else bias._replace(axis=channels)
    if is_sharded(lead):
        return view.align(lead, {0: channels, 1: 0}), [lead]
    if PARTIAL_SUM in (label, bias):
        return [PARTIAL_SUM, PARTIAL_SUM], [PARTIAL_SUM]
    raise Gather


def samples_together(view: View, batched: tuple[int, ...], outputs: list[Label] | None = None) -> Ruling:
    """Label an operation on each sample alone; the inputs `batched` have samples along axis 0.

    By default the outputs are SHARDED along axis 0 where they have axes.
    """
    labels = [view.labels[number] for number in batched]
    leads = [label for label in labels if is_sharded(label)]
    if any(label != leads[0] for label in leads):
        leads = [view.labels[n] for n in batched if is_sharded(view.labels[n]) and not view.values[n].free]
    if not leads or any(label._replace(axis=0) != leads[0] for label in leads):
        raise Gather
    wants = view.align(leads[0], {n: 0 if n in batched else -1 for n in range(len(view.labels))}, True)
    return wants, outputs or [leads[0] if shape != [] else REPLICATED for shape in view.out_shapes]


EACH_SAMPLE = {  # numbers of the inputs that have samples along axis 0
    (0,): """
        Conv2D DepthwiseConv2dNative Conv3D Conv MaxPool AvgPool MaxPool3D AvgPool3D MaxPoolV2 ResizeBilinear
        ResizeBicubic ResizeNearestNeighbor ResizeArea SpaceToDepth DepthToSpace LRN ExtractImagePatches
        MatrixInverse Cholesky MatrixDeterminant AdjustContrastv2 AdjustHue
        AdjustSaturation RGBToHSV HSVToRGB Dilation2D Qr MatrixDiagPartV3 FFT IFFT FFT2D IFFT2D RFFT IRFFT
        ResizeNearestNeighborGrad
    """,
    (0, 1): """
        ResizeBilinearGrad ResizeBicubicGrad MatrixSolve MatrixTriangularSolve InTopKV2 SoftmaxCrossEntropyWithLogits
        SparseSoftmaxCrossEntropyWithLogits
    """,
    (0, 1, 2): "MaxPoolGrad MaxPool3DGrad LRNGrad",
}  # fmt: skip
_OF_LAST_AXES = {
    1: "FFT IFFT RFFT IRFFT AdjustHue AdjustSaturation RGBToHSV HSVToRGB",
    2: "MatrixInverse Cholesky MatrixDeterminant Qr MatrixDiagPartV3 MatrixSolve MatrixTriangularSolve FFT2D IFFT2D",
    3: "AdjustContrastv2",
}
"""By how many last axes of its first input an operation mixes: with fewer than one more, axis 0 is one of them."""
_MIXED = {name: count for count, names in _OF_LAST_AXES.items() for name in names.split()}


@rule(*" ".join(EACH_SAMPLE.values()).split())
def _each_sample(view: View) -> Ruling:
    if view.rank(0) <= _MIXED.get(view.type, 0):
        raise Gather
    return samples_together(view, next(n for n, types in EACH_SAMPLE.items() if view.type in types.split()))


@rule("ImageProjectiveTransformV3")
def _project_images(view: View) -> Ruling:
    of_each = is_open(view.shape(1)[0])  # a transform for each sample, or one for all
    return samples_together(view, (0, 1) if of_each else (0,))


@rule("SpaceToBatchND", "BatchToSpaceND")
def _space_and_batch(view: View) -> Ruling:
    label = view.samples()
    times = int(view.require_fixed(1).prod())  # the batch comes once for each place in a block
    if label.axis != 0 or label.chosen or (view.type == "BatchToSpaceND" and label.blocks % times):
        raise Gather
    blocks = label.blocks * times if view.type == "SpaceToBatchND" else label.blocks // times
    return view.keep(label._replace(blocks=blocks))


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
            raise Gather
    return wants, made


@rule("Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter", "Conv3DBackpropFilterV2")
def _filter_gradient(view: View) -> Ruling:
    return samples_together(view, (0, 2), [PARTIAL_SUM])


@rule("FusedBatchNormV3")
def _batch_normalization(view: View) -> Ruling:
    if view.attr("is_training"):
        raise Gather
    wants, made = samples_together(view, (0,))
    return wants, [made[0], *[REPLICATED] * (len(view.op.outputs) - 1)]
