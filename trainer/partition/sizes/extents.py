"""The shapes of a step's tensors for every batch: a rule for each type of operation, else TensorFlow's static shape."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .known_inputs import find_traced_shape, infer_shape, require, require_axes, require_fixed
from .moved_extents import MOVED
from .size import Extent, Length, Shape, Size, broadcast_extent, equal, same_extent
from .size_arrays import Unknown, broadcast_shapes, extents_of

Shapes = Sequence[Shape]


def find_shapes(op: tf.Operation, inputs: Sequence[Any]) -> list[Shape]:
    """Return the shape of each output on a single device, for every batch, from the `Value` of each input.

    A list of tensors has the shape of its elements.
    """
    try:
        found = [*SHAPES[op.type](op, inputs)] if op.type in SHAPES else []
    except (Unknown, IndexError, ValueError):
        found = []
    found += [None] * (len(op.outputs) - len(found))
    return [
        find_traced_shape(op, inputs, number) if shape is None else shape
        for number, shape in enumerate(found)
    ]


def _as(*numbers: int) -> Callable[..., Shapes]:
    """Return the shapes of these inputs, which are those of the outputs."""
    return lambda op, inputs: [inputs[number].shape for number in numbers]


def _from_value(number: int, rest: int | None = None) -> Callable[..., Shapes]:
    """Return the shape that an input contains, with the axes of the input `rest` after it, for the first output."""

    def rule(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
        after = [] if rest is None else require(inputs[rest].shape)
        return [require(extents_of(inputs[number].constant)) + after]

    return rule


def _keep_leading(dropped: int, *numbers: int) -> Callable[..., Shapes]:
    """Return all but the last axes of the inputs `numbers`, which are the same; the rest is static."""

    def rule(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
        shapes = [require(inputs[number].shape) for number in numbers or (0,)]
        count = len(shapes[0]) - dropped
        lead = [
            functools.reduce(broadcast_extent, each) for each in zip(*(shape[:count] for shape in shapes))
        ]
        return [
            lead + require(find_traced_shape(op, inputs, number))[count:] for number in range(len(op.outputs))
        ]

    return rule


def _first_axis(*numbers: int) -> Callable[..., Shapes]:
    """Return the first axis of the inputs `numbers`, which is the same; the rest is static, or are new lengths."""

    def rule(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
        first = functools.reduce(same_extent, [require(inputs[number].shape)[0] for number in numbers])
        shapes = [require(infer_shape(op, inputs, number)) for number in range(len(op.outputs))]
        rest = [[Size.of(Length()) if extent is None else extent for extent in shape[1:]] for shape in shapes]
        return [[first, *others] if shape else [] for shape, others in zip(shapes, rest)]

    return rule


def broadcast(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    """Return the shape of inputs that are broadcast against each other."""
    if op.type == "Bitcast" and op.inputs[0].dtype.size != op.outputs[0].dtype.size:
        raise Unknown
    if op.type in ("Equal", "NotEqual") and not op.get_attr("incompatible_shape_error"):
        pairs = zip(*(reversed(require(value.shape)) for value in inputs))
        if not all(1 in pair or equal(*pair) for pair in pairs):
            raise Unknown  # a number, where the shapes do not match
    return [broadcast_shapes([value.shape for value in inputs])] * len(op.outputs)


def product_terms(op: tf.Operation, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the terms and the result of a product in the notation of einsum: a letter for each axis."""
    if op.type == "Einsum":
        return _einsum_terms(op, ranks)
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    one, other = (op.get_attr(name) for name in names)
    letters = "abcdefgh"[: max(ranks) - 2]
    ends = ["ki" if one else "ik", "jk" if other else "kj"]
    return [letters[len(letters) - rank + 2 :] + end for rank, end in zip(ranks, ends)], letters + "ij"


def _einsum_terms(op: tf.Operation, ranks: Sequence[int]) -> tuple[list[str], str]:
    left, _, result = op.get_attr("equation").decode().replace(" ", "").partition("->")
    terms = left.split(",")
    if "..." in left:
        hidden = [rank - len(term) + 3 if "..." in term else 0 for rank, term in zip(ranks, terms)]
        names = "αβγδεζηθ"[: max(hidden)]
        terms = [term.replace("...", names[len(names) - count :]) for term, count in zip(terms, hidden)]
        result = result.replace("...", names)
    return terms, result


def _contraction(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shapes = [require(value.shape) for value in inputs]
    terms, result = product_terms(op, [*map(len, shapes)])
    found: dict[str, Extent] = {}
    for term, shape in zip(terms, shapes):
        for letter, extent in zip(term, shape):
            found[letter] = broadcast_extent(found.get(letter, 1), extent)
    return [[found[letter] for letter in result]]


def _cross_entropy(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    logits, labels = (require(value.shape) for value in inputs)
    first = (same_extent if op.type.startswith("Sparse") else broadcast_extent)(logits[0], labels[0])
    return [[first], [first, *map(broadcast_extent, logits[1:], labels[1:] or [1])]]


def _diagonal(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = require(inputs[0].shape)
    if any(
        require_fixed(value).ravel().tolist() != [default] for value, default in zip(inputs[1:4], (0, -1, -1))
    ):
        raise Unknown
    return [[*shape, shape[-1]]]


def _reduce(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = require(inputs[0].shape)
    keeps = op.type not in ("ArgMax", "ArgMin") and op.get_attr("keep_dims")
    if keeps and inputs[1].sums:
        return [[{True: 1, False: extent}.get(is_summed) for extent, is_summed in zip(shape, inputs[1].sums)]]
    axes = require_axes(inputs[1], len(shape))
    return [[1 if n in axes else extent for n, extent in enumerate(shape) if keeps or n not in axes]]


def _gather(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    params, indices = require(inputs[0].shape), require(inputs[1].shape)
    (axis,) = require_axes(inputs[2], len(params))
    return [params[:axis] + indices[op.get_attr("batch_dims") :] + params[axis + 1 :]]


def _gather_nd(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    params, indices = require(inputs[0].shape), require(inputs[1].shape)
    if not isinstance(indices[-1], int):
        raise Unknown
    return [indices[:-1] + params[indices[-1] :]]


def _segments(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    data, ids, count = require(inputs[0].shape), require(inputs[1].shape), inputs[2].constant
    return [[None if count is None else count.item(), *data[len(ids) :]]]


def _bins(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    count = inputs[1].constant
    return [[*require(inputs[0].shape)[:-1], None if count is None else count.item()]]


def _one_hot(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, depth = [*require(inputs[0].shape)], inputs[1].constant
    shape.insert(op.get_attr("axis") % (len(shape) + 1), None if depth is None else depth.item())
    return [shape]


_RULES: dict[str, Callable[..., Shapes]] = {
    "BiasAdd Cumsum Cumprod ReverseV2 Roll Softmax LogSoftmax MatrixBandPart TensorScatterAdd TensorScatterSub Cast "
    "ZerosLike OnesLike MatrixInverse Cholesky FFT IFFT FFT2D IFFT2D MaxPoolGrad MaxPool3DGrad LRN LRNGrad EnsureShape "
    "MatrixSetDiagV3 TensorScatterUpdate TensorScatterMax TensorScatterMin CumulativeLogsumexp "
    "AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB FusedBatchNormV3 RandomShuffle InvertPermutation "
    "OptionalGetValue": _as(0),
    "Select LookupTableFindV2": _as(1),
    "IdentityN": lambda op, inputs: [value.shape for value in inputs],
    "Shape ShapeN": lambda op, inputs: [[None if v.shape is None else len(v.shape)] for v in inputs],
    "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum": _contraction,
    "Sum Mean Max Min Any All Prod EuclideanNorm ArgMax ArgMin": _reduce,
    "Conv2D DepthwiseConv2dNative Conv3D Conv MaxPool AvgPool MaxPool3D AvgPool3D MaxPoolV2 ResizeBilinear "
    "ResizeBicubic ResizeNearestNeighbor ResizeArea SpaceToDepth DepthToSpace ExtractImagePatches Dilation2D "
    "ResizeNearestNeighborGrad ImageProjectiveTransformV3 ResizeBilinearGrad ResizeBicubicGrad "
    "Multinomial": _first_axis(0),
    "DenseBincount": _bins,
    "InTopKV2": _first_axis(0, 1),
    "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits": _cross_entropy,
    "MatrixDiag MatrixDiagV2 MatrixDiagV3": _diagonal,
    "TopKV2 NthElement RFFT IRFFT": _keep_leading(1),
    "MatrixDeterminant Qr MatrixDiagPartV3 Svd SelfAdjointEigV2 Lu": _keep_leading(2),
    "MatrixSolve MatrixTriangularSolve": _keep_leading(2, 0, 1),
    "GatherV2": _gather,
    "GatherNd": _gather_nd,
    "ResourceGather": lambda op, inputs: [
        require(inputs[1].shape) + require(find_traced_shape(op, inputs))[len(require(inputs[1].shape)) :]
    ],
    "UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin": _segments,
    "ScatterNd": _from_value(2),
    "OneHot": _one_hot,
    "BroadcastTo": _from_value(1),
    "Fill Empty StridedSliceGrad Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput Conv3DBackpropInputV2 AvgPoolGrad "
    "AvgPool3DGrad StatelessRandomNormalV2 StatelessRandomUniformV2 "
    "StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2 RandomStandardNormal "
    "RandomUniform RandomUniformInt TruncatedNormal": _from_value(0),
    "RandomGamma RandomPoissonV2": _from_value(0, 1),
}
SHAPES = {name: rule for names, rule in (_RULES | MOVED).items() for name in names.split()}
"""By the type of an operation: `fn(op, inputs)`, the shapes of its outputs; the others are TensorFlow's."""
