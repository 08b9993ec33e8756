"""Operations on each sample alone: pictures, matrices, Fourier transforms, losses of classes."""

import itertools
from typing import Any

import tensorflow as tf

from ..sizes.size import broadcast_extent, is_open, quotient
from ..sizes.size_arrays import Unknown, product
from .call import Call, ReplicaCall, name_axes, require, shape_in
from .row import add_rows, is_any
from .shares import divide_dense_entropy, divide_ranks, divide_sparse_entropy, look_up_diagonal
from .terms import FIRST, Terms


def of_each_sample(
    *batched: int, last: int | None = None, same: bool = False, infers: bool = False, sized: int | None = None
) -> Any:
    """Return the terms of an operation on each sample alone.

    Args:
        batched: the numbers of the inputs that have samples; the others are used whole.
        last: how many of their last axes it mixes; None: all but the first.
        same: whether the outputs have the axes of the first of them, and not new ones after those of the samples.
        infers: as for `Terms`.
        sized: the number of the input that has the shape of the first output.
    """

    def find_terms(call: Call) -> Terms:
        count = 1 if last is None else max(call.rank(batched[0]) - last, 0)
        samples, letters = name_axes(count), iter(name_axes(99, count))

        def with_more(rank: int | None) -> str:
            """Return the letters of the samples, and further ones."""
            return samples + "".join(itertools.islice(letters, max(require(rank) - count, 0)))

        terms = [with_more(call.rank(n)) if n in batched else None for n in range(len(call.values))]
        mixed = "".join(term[count:] for term in terms if term)
        made = [terms[batched[0]] if same else with_more(tensor.shape.rank) for tensor in call.op.outputs]
        sizes = {} if sized is None else {sized: made[0] or ""}
        return Terms(terms, made, mixed, sizes=sizes, infers=infers)

    return find_terms


add_rows(
    "Conv2D DepthwiseConv2dNative Conv3D Conv MaxPool AvgPool MaxPool3D AvgPool3D MaxPoolV2 ResizeBilinear ResizeBicubic "
    "ResizeNearestNeighbor ResizeArea SpaceToDepth DepthToSpace ExtractImagePatches Dilation2D ResizeNearestNeighborGrad "
    "ScaleAndTranslate",
    terms=of_each_sample(0, infers=True),
)
add_rows(
    "ResizeBilinearGrad ResizeBicubicGrad ScaleAndTranslateGrad", terms=of_each_sample(0, 1, infers=True)
)
add_rows("LRN", terms=of_each_sample(0, same=True))
add_rows("MaxPoolGrad MaxPool3DGrad LRNGrad", terms=of_each_sample(0, 1, 2, same=True))
add_rows("AdjustContrastv2", terms=of_each_sample(0, last=3, same=True))
add_rows("AdjustHue AdjustSaturation RGBToHSV HSVToRGB FFT IFFT", terms=of_each_sample(0, last=1, same=True))
add_rows("MatrixInverse Cholesky FFT2D IFFT2D", terms=of_each_sample(0, last=2, same=True))
add_rows("RFFT IRFFT", terms=of_each_sample(0, last=1))
add_rows("MatrixDeterminant Qr Svd SelfAdjointEigV2 Lu", terms=of_each_sample(0, last=2))
add_rows("MatrixDiagPartV3", terms=of_each_sample(0, last=2), rewrite=look_up_diagonal)


add_rows(
    "ImageProjectiveTransformV3",  # with a transform for each sample, or one for all
    terms=lambda call: of_each_sample(*((0, 1) if is_open(call.shape(1)[0]) else (0,)), infers=True)(call),
)


def _find_solved(call: Call) -> Terms:
    """Return the terms of a system of equations, whose columns are independent."""
    lead = name_axes(call.rank() - 2)
    if call.rank(1) != call.rank():
        raise Unknown
    return Terms([lead + "IJ", lead + "JK"], [lead + "JK"], "IJ", join=broadcast_extent)


add_rows("MatrixSolve MatrixTriangularSolve", terms=_find_solved)


def _find_diagonals(call: Call) -> Terms:
    if any(call.fixed(n).ravel().tolist() != [default] for n, default in ((1, 0), (2, -1), (3, -1))):
        raise Unknown
    names = name_axes(call.rank() + 1)
    return Terms([names[:-1]], [names], names[-2:], new={names[-1]: call.shape()[-1]})


add_rows("MatrixDiagV3", terms=_find_diagonals)


def _find_normalized(call: Call) -> Terms:
    names = call.names()
    mixed = names if call.attr("is_training") else names[1:]
    return Terms([names], [names, *[None] * (call.count - 1)], mixed)


add_rows("FusedBatchNormV3", terms=_find_normalized)


def _copy_entropy(call: ReplicaCall, given: list[Any]) -> list[Any]:
    """Return the outputs for labels that are broadcast; TensorFlow expects outputs of one sample otherwise."""
    if call.shape(0) != call.shape(1):
        size = tf.broadcast_dynamic_shape(*map(tf.shape, given))
        given = [tf.broadcast_to(each, size) for each in given]
    return call.make(given)


add_rows(
    "SoftmaxCrossEntropyWithLogits",
    terms=lambda call: Terms(["ab", "ab"], ["a", "ab"], "b", join=broadcast_extent),
    rewrite=divide_dense_entropy,
    copy=_copy_entropy,
)
add_rows(
    "SparseSoftmaxCrossEntropyWithLogits",
    terms=lambda call: Terms(["ab", "a"], ["a", "ab"], "b"),
    rewrite=divide_sparse_entropy,
)
add_rows("InTopKV2", terms=lambda call: Terms(["ab", "a"], ["a"], "b"), rewrite=divide_ranks)


def _find_reversed(call: Call) -> Terms:
    """Return the terms of parts of sequences in reverse, each of its own length."""
    names = call.names()
    return Terms([names, names[call.attr("batch_dim")]], [names], names[call.attr("seq_dim")])


add_rows("ReverseSequence", terms=_find_reversed, linear=FIRST, scales=is_any)


def _find_blocks_of_batch(call: Call) -> Terms:
    """Return the terms of a batch that comes once for each place in a block, or of the reverse."""
    first, times = call.shape()[0], int(call.fixed(1).prod())
    first = product([first, times]) if call.type == "SpaceToBatchND" else quotient(first, times)
    names, more = call.names(), name_axes(call.rank(), call.rank())
    extents = dict(zip(more, [first, *call.static()[1:]]))
    return Terms([names], [more], names[1:], new=extents, cuts={more[0]: (names[0], 0)})


add_rows("SpaceToBatchND BatchToSpaceND", terms=_find_blocks_of_batch)


_GRADED: Any = {"shape": shape_in(0)}  # the gradient of pictures, whose sizes are the first input
_FILTERED = "Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput Conv3DBackpropInputV2"
add_rows(_FILTERED, terms=of_each_sample(2, sized=0), **_GRADED)
add_rows("AvgPoolGrad AvgPool3DGrad", terms=of_each_sample(1, sized=0), **_GRADED)
