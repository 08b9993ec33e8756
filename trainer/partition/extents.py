"""The shapes of a step's tensors for every batch: a rule for each type of operation, else TensorFlow's static shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .size_values import Unknown
from .sizes import (
    Extent,
    Shape,
    at_most,
    broadcast_extent,
    broadcast_shapes,
    divide,
    extents_of,
    plain,
    product,
    quotient,
    same_extent,
)

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
    return [_traced(op, inputs, number) if shape is None else shape for number, shape in enumerate(found)]


def shape_of(shape: Any) -> Shape:
    """A `TensorShape` as a list."""
    return None if shape.rank is None else shape.as_list()


def _traced(op: tf.Operation, inputs: Sequence[Any], number: int = 0) -> Shape:
    """TensorFlow's static shape of an output, without its extents where it took another one of an input for certain.

    TensorFlow's shape of `x[:9]` has 9 rows, also for a batch of 7.
    """
    shape = shape_of(op.outputs[number].shape)
    for tensor, value in zip(op.inputs, inputs):
        given = shape_of(tensor.shape) if tensor.dtype not in (tf.resource, tf.variant) else None
        if given is not None and not _agree(given, value.shape):
            return shape and [None] * len(shape)
    return shape


def _agree(traced: list[Extent], shape: Shape) -> bool:
    return shape is not None and all(a is None or a == b for a, b in zip(traced, shape))


def _known(shape: Shape) -> list[Extent]:
    if shape is None:
        raise Unknown
    return shape


def _fixed(value: Any) -> np.ndarray:
    found = plain(value.constant)
    if found is None:
        raise Unknown
    return found


def _axes(value: Any, rank: int) -> list[int]:
    return [int(axis) % max(rank, 1) for axis in np.ravel(_fixed(value))]


def _as(*numbers: int) -> Callable[..., Shapes]:
    """The outputs have the shapes of these inputs."""
    return lambda op, inputs: [inputs[number].shape for number in numbers]


def _from_value(number: int, rest: int | None = None) -> Callable[..., Shapes]:
    """The first output has the shape that an input contains, and the axes of the input `rest` after it."""

    def rule(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
        after = [] if rest is None else _known(inputs[rest].shape)
        return [_known(extents_of(inputs[number].constant)) + after]

    return rule


def _leading(dropped: int, *numbers: int) -> Callable[..., Shapes]:
    """All but the last axes of the inputs `numbers`, which are the same; the rest is static."""

    def rule(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
        shapes = [_known(inputs[number].shape) for number in numbers or (0,)]
        count = len(shapes[0]) - dropped
        lead = [
            functools.reduce(broadcast_extent, each) for each in zip(*(shape[:count] for shape in shapes))
        ]
        return [lead + _known(_traced(op, inputs, number))[count:] for number in range(len(op.outputs))]

    return rule


def _first_axis(*numbers: int) -> Callable[..., Shapes]:
    """The first axis of the inputs `numbers`, which is the same; the rest is static."""

    def rule(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
        first = functools.reduce(same_extent, [_known(inputs[number].shape)[0] for number in numbers])
        return [
            [first, *shape[1:]] if (shape := _known(_traced(op, inputs, n))) else []
            for n in range(len(op.outputs))
        ]

    return rule


def broadcast(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    """The inputs are broadcast against each other."""
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
    shapes = [_known(value.shape) for value in inputs]
    terms, result = product_terms(op, [*map(len, shapes)])
    found: dict[str, Extent] = {}
    for term, shape in zip(terms, shapes):
        for letter, extent in zip(term, shape):
            found[letter] = broadcast_extent(found.get(letter, 1), extent)
    return [[found[letter] for letter in result]]


def _cross_entropy(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    logits, labels = (_known(value.shape) for value in inputs)
    first = (same_extent if op.type.startswith("Sparse") else broadcast_extent)(logits[0], labels[0])
    return [[first], [first, *map(broadcast_extent, logits[1:], labels[1:] or [1])]]


def _diagonal(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = _known(inputs[0].shape)
    if any(_fixed(value).ravel().tolist() != [default] for value, default in zip(inputs[1:4], (0, -1, -1))):
        raise Unknown
    return [[*shape, shape[-1]]]


def _reduced(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = _known(inputs[0].shape)
    axes = _axes(inputs[1], len(shape))
    keeps = op.type not in ("ArgMax", "ArgMin") and op.get_attr("keep_dims")
    return [[1 if n in axes else extent for n, extent in enumerate(shape) if keeps or n not in axes]]


def _gather(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    params, indices = _known(inputs[0].shape), _known(inputs[1].shape)
    (axis,) = _axes(inputs[2], len(params))
    return [params[:axis] + indices[op.get_attr("batch_dims") :] + params[axis + 1 :]]


def _gather_nd(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    params, indices = _known(inputs[0].shape), _known(inputs[1].shape)
    if not isinstance(indices[-1], int):
        raise Unknown
    return [indices[:-1] + params[indices[-1] :]]


def _segments(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    data, ids, count = _known(inputs[0].shape), _known(inputs[1].shape), inputs[2].constant
    return [[None if count is None else count.item(), *data[len(ids) :]]]


def _bins(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    count = inputs[1].constant
    return [[*_known(inputs[0].shape)[:-1], None if count is None else count.item()]]


def _one_hot(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, depth = [*_known(inputs[0].shape)], inputs[1].constant
    shape.insert(op.get_attr("axis") % (len(shape) + 1), None if depth is None else depth.item())
    return [shape]


def _reshape(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, values = inputs[0].shape, inputs[1].constant
    if values is None:
        raise Unknown
    found = values.tolist()
    open_axes = [axis for axis, extent in enumerate(found) if extent == -1]
    if open_axes and shape is not None:
        rest = product(extent for extent in found if extent != -1)
        found[open_axes[0]] = quotient(product(shape), rest) if rest != 0 else None
    return [[None if extent == -1 else extent for extent in found]]


def _expand(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = [*_known(inputs[0].shape)]
    shape.insert(int(_fixed(inputs[1]).ravel()[0]) % (len(shape) + 1), 1)
    return [shape]


def squeezed_axes(op: tf.Operation, shape: Sequence[Extent]) -> list[int]:
    """Return the axes that a `Squeeze` drops; without a list, an extent that may be 1 for some batch is not known."""
    dims = [dim % len(shape) for dim in op.get_attr("squeeze_dims")]
    if not dims and not all(isinstance(extent, int) or at_most(2, extent) for extent in shape):
        raise Unknown
    return dims or [axis for axis, extent in enumerate(shape) if extent == 1]


def _squeeze(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = _known(inputs[0].shape)
    axes = squeezed_axes(op, shape)
    return [[extent for axis, extent in enumerate(shape) if axis not in axes]]


def _transpose(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = _known(inputs[0].shape)
    return [[shape[axis] for axis in _axes(inputs[1], len(shape))]]


def _sum(*extents: Extent) -> Extent:
    return None if None in extents else sum(extents)  # type: ignore[arg-type]


def _pad(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, more = _known(inputs[0].shape), inputs[1].constant
    if more is None:
        raise Unknown
    sign = -1 if op.type == "MirrorPadGrad" else 1
    return [
        [_sum(n, *(None if m is None else sign * m for m in row)) for n, row in zip(shape, more.tolist())]
    ]


def _tile(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, times = _known(inputs[0].shape), inputs[1].constant
    if times is None:
        raise Unknown
    return [[product(pair) for pair in zip(shape, times.tolist())]]


def _concat(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shapes = [_known(value.shape) for value in inputs[:-1]]
    (axis,) = _axes(inputs[-1], len(shapes[0]))
    return [
        [
            _sum(*each) if n == axis else functools.reduce(same_extent, each)
            for n, each in enumerate(zip(*shapes))
        ]
    ]


def _pack(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shapes = [_known(value.shape) for value in inputs]
    shape = [functools.reduce(same_extent, each) for each in zip(*shapes)]
    shape.insert(op.get_attr("axis") % (len(shape) + 1), len(inputs))
    return [shape]


def _unpack(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape = [*_known(inputs[0].shape)]
    del shape[op.get_attr("axis")]
    return [shape] * len(op.outputs)


def _split(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    data, where = (1, 0) if op.type == "Split" else (0, 2)
    shape, count = _known(inputs[data].shape), len(op.outputs)
    (axis,) = _axes(inputs[where], len(shape))
    sizes = [quotient(shape[axis], count)] * count
    if op.type == "SplitV":
        given = inputs[1].constant
        sizes = [None if given is None or given[n] == -1 else given[n] for n in range(count)]
        if sizes.count(None) == 1 and given is not None and None not in given.tolist():
            rest = _sum(*(size for size in sizes if size is not None))
            sizes[sizes.index(None)] = None if None in (shape[axis], rest) else shape[axis] - rest  # type: ignore[operator]
    return [[*shape[:axis], size, *shape[axis + 1 :]] for size in sizes]


def named_axes(op: tf.Operation, count: int, rank: int) -> tuple[list[int | None], dict[int, int]]:
    """Return the original axis for each axis of a strided slice (None: new), and the entry that names each original axis."""
    names = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    ellipsis, new, shrink = (op.get_attr(name) for name in names)
    axes: list[int | None] = []
    named: dict[int, int] = {}
    axis = 0
    ordinary = sum(1 for entry in range(count) if not (ellipsis | new) >> entry & 1)
    for entry in range(count):
        if ellipsis >> entry & 1:
            skipped = rank - ordinary
            axes += range(axis, axis + skipped)
            axis += skipped
        elif new >> entry & 1:
            axes.append(None)
        else:
            named[axis] = entry
            if not shrink >> entry & 1:
                axes.append(axis)
            axis += 1
    axes += range(axis, rank)
    return axes, named


def _clamped(end: Extent, extent: Extent) -> Extent:
    """Where a slice begins or ends in an axis; a negative end counts from the last entry."""
    if end is None or extent is None:
        return None
    if at_most(end, -1):
        end = end + extent
    elif not at_most(0, end):
        return None
    if at_most(extent, end):
        return extent
    return 0 if at_most(end, 0) else end if at_most(0, end) and at_most(end, extent) else None


def slice_ends(
    op: tf.Operation, inputs: Sequence[Any], entry: int | None, extent: Extent
) -> tuple[Extent, Extent]:
    """Return the positions where an entry of a strided slice in steps of 1 begins and ends; None: the whole axis."""
    begin, end = (0, extent)
    for name, number in (("begin", 1), ("end", 2)):
        if entry is not None and not op.get_attr(f"{name}_mask") >> entry & 1:
            given = inputs[number].constant
            found = None if given is None else _clamped(given[entry], extent)
            begin, end = (found, end) if name == "begin" else (begin, found)
    return begin, end


def _length(begin: Extent, end: Extent) -> Extent:
    if begin is None or end is None:
        return None
    return end - begin if at_most(begin, end) else 0 if at_most(end, begin) else None


def _strided_slice(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, (count,) = _known(inputs[0].shape), _known(inputs[1].shape)
    if not isinstance(count, int):
        raise Unknown
    axes, named = named_axes(op, count, len(shape))
    steps = plain(inputs[3].constant)

    def length(axis: int) -> Extent:
        entry, extent = named.get(axis), shape[axis]
        step = 1 if entry is None else None if steps is None else int(steps[entry])
        if step == 1:
            return _length(*slice_ends(op, inputs, entry, extent))
        whole = entry is not None and (op.get_attr("begin_mask") & op.get_attr("end_mask")) >> entry & 1
        return extent if step == -1 and whole else None

    return [[1 if axis is None else length(axis) for axis in axes]]


def _slice(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    shape, begin, size = _known(inputs[0].shape), inputs[1].constant, inputs[2].constant
    if size is None:
        raise Unknown
    begins = [None] * len(shape) if begin is None else begin.tolist()
    rest = [None if None in (n, b) else n - b for n, b in zip(shape, begins)]  # type: ignore[operator]
    return [[r if n == -1 else n for r, n in zip(rest, size.tolist())]]


def _range(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    first, limit, step = (None if v.constant is None else v.constant.item() for v in inputs)
    if None in (first, limit) or not isinstance(step, int) or step == 0:
        raise Unknown
    length = _length(first, limit) if step > 0 else _length(limit, first)
    whole, rest = divide(length, abs(step))
    return [[None if whole is None else whole + (rest != 0)]]  # type: ignore[operator]


def _blocks_of_batch(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    first, times = _known(inputs[0].shape)[0], int(_fixed(inputs[1]).prod())
    first = product([first, times]) if op.type == "SpaceToBatchND" else quotient(first, times)
    return [[first, *_known(_traced(op, inputs))[1:]]]


def _element(op: tf.Operation, inputs: Sequence[Any]) -> Shapes:
    """The elements of a list, which is the first input."""
    if inputs[0].dtype != tf.variant or inputs[0].label.kind == "empty list":
        raise Unknown
    shape = _known(inputs[0].shape)
    if op.type == "TensorListPopBack":
        return [None, shape[1:]]
    if op.type == "TensorListGetItem":
        return [shape[1:]]
    return [[None, *shape[2:]] if op.type == "TensorListConcatV2" else shape]


_RULES: dict[str, Callable[..., Shapes]] = {
    "BiasAdd Cumsum Cumprod ReverseV2 Roll Softmax LogSoftmax MatrixBandPart TensorScatterAdd TensorScatterSub Cast "
    "ZerosLike OnesLike MatrixInverse Cholesky FFT IFFT FFT2D IFFT2D MaxPoolGrad MaxPool3DGrad LRN LRNGrad EnsureShape "
    "MatrixSetDiagV3 TensorScatterUpdate TensorScatterMax TensorScatterMin CumulativeLogsumexp AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB FusedBatchNormV3 RandomShuffle InvertPermutation": _as(
        0
    ),
    "Select LookupTableFindV2": _as(1),
    "OptionalGetValue": _as(0),
    "IdentityN": lambda op, inputs: [value.shape for value in inputs],
    "Shape ShapeN": lambda op, inputs: [[None if v.shape is None else len(v.shape)] for v in inputs],
    "MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 Einsum": _contraction,
    "Sum Mean Max Min Any All Prod EuclideanNorm ArgMax ArgMin": _reduced,
    "Conv2D DepthwiseConv2dNative Conv3D Conv MaxPool AvgPool MaxPool3D AvgPool3D MaxPoolV2 ResizeBilinear "
    "ResizeBicubic ResizeNearestNeighbor ResizeArea SpaceToDepth DepthToSpace ExtractImagePatches Dilation2D "
    "ResizeNearestNeighborGrad ImageProjectiveTransformV3 ResizeBilinearGrad ResizeBicubicGrad Multinomial": _first_axis(
        0
    ),
    "DenseBincount": _bins,
    "InTopKV2": _first_axis(0, 1),
    "SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits": _cross_entropy,
    "MatrixDiag MatrixDiagV2 MatrixDiagV3": _diagonal,
    "TopKV2 NthElement RFFT IRFFT": _leading(1),
    "MatrixDeterminant Qr MatrixDiagPartV3 Svd SelfAdjointEigV2 Lu": _leading(2),
    "MatrixSolve MatrixTriangularSolve": _leading(2, 0, 1),
    "GatherV2": _gather,
    "GatherNd": _gather_nd,
    "ResourceGather": lambda op, inputs: [
        _known(inputs[1].shape) + _known(_traced(op, inputs))[len(_known(inputs[1].shape)) :]
    ],
    "UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin": _segments,
    "ScatterNd": _from_value(2),
    "OneHot": _one_hot,
    "Reshape": _reshape,
    "ExpandDims": _expand,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Pad PadV2 MirrorPad MirrorPadGrad": _pad,
    "Tile": _tile,
    "BroadcastTo": _from_value(1),
    "Fill Empty StridedSliceGrad Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput Conv3DBackpropInputV2 AvgPoolGrad "
    "AvgPool3DGrad StatelessRandomNormalV2 StatelessRandomUniformV2 "
    "StatelessTruncatedNormalV2 StatelessRandomUniformIntV2 StatelessRandomUniformFullIntV2 RandomStandardNormal "
    "RandomUniform RandomUniformInt TruncatedNormal": _from_value(0),
    "RandomGamma RandomPoissonV2": _from_value(0, 1),
    "ConcatV2": _concat,
    "Pack": _pack,
    "Unpack": _unpack,
    "Split SplitV": _split,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    "Range": _range,
    "SpaceToBatchND BatchToSpaceND": _blocks_of_batch,
    "TensorListPopBack TensorListGetItem TensorListStack TensorListConcatV2": _element,
}
SHAPES = {name: rule for names, rule in _RULES.items() for name in names.split()}
"""By the type of an operation: `fn(op, inputs)`, the shapes of its outputs; the others are TensorFlow's."""
