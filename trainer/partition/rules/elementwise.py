"""Operations on each element: linear ones keep partial sums, others need the sum."""

import functools
from collections.abc import Callable, Collection, Sequence

import tensorflow as tf

from ..labels import (
    PARTIAL_MAX,
    PARTIAL_MIN,
    PARTIAL_SUM,
    REPLICATED,
    is_partial,
    is_sharded,
    label_sharded,
)
from ..program import Value
from ..sizes.extents import SHAPES, broadcast
from ..sizes.intervals import is_finite, is_not_zero
from .view import Gather, Ruling, View, rule

LINEAR = "linear"  # in all inputs together: a sum
PRODUCT = "product"  # in each input alone
QUOTIENT = "quotient"  # in the first input
OTHER = "not linear"
_SUMS = "AddV2 Add Sub AddN Neg Identity StopGradient PreventGradient Snapshot Real IdentityN"
_EXTREMES = {
    "Maximum": PARTIAL_MAX, "LogicalOr": PARTIAL_MAX, "Minimum": PARTIAL_MIN, "LogicalAnd": PARTIAL_MIN,
}  # fmt: skip


def is_factor(value: Value) -> bool:
    """Return whether parts of a sum times a number are parts of the product: the number is finite. Integers wrap."""
    return value.dtype.is_integer or is_finite(value)


def _keeps_signs(value: Value) -> bool:
    """Return whether it `is_factor`, and a zero has the sum's sign: no factor is 0, and no divisor is infinite."""
    return value.dtype.is_integer or (is_finite(value) and is_not_zero(value))


def _is_any(value: Value) -> bool:
    return True


_CAN_SCALE: dict[str, Callable[[Value], bool]] = {
    "DivNoNan": _is_any,
    "ReluGrad": _is_any,
    "Relu6Grad": _is_any,
    **dict.fromkeys(
        ["TanhGrad", "SigmoidGrad", "EluGrad", "SeluGrad", "SoftplusGrad", "SoftsignGrad", "LeakyReluGrad"],
        is_factor,
    ),
}
"""By the type of an operation, whether a number can scale partial sums; `_keeps_signs` for other types."""


def elementwise(
    view: View, kind: str, inputs: Sequence[int] | None = None, fixed: Collection[int] = ()
) -> Ruling:
    """Label an operation that broadcasts `inputs` (all by default) against each other, and uses others unchanged.

    `kind` names the inputs in which it is linear, except those in `fixed`.
    """
    every = range(len(view.labels)) if inputs is None else inputs
    samples = [number for number in every if is_sharded(view.labels[number])]
    if not samples:
        return _without_samples(view, kind, every, fixed)
    before = {number: view.out_rank() - view.rank(number) for number in every}  # axes that an input lacks
    if min(before.values()) < 0:
        raise Gather  # numbers of other shapes, compared as a whole
    _, axis, first = min((view.values[n].free, before[n] + view.labels[n].axis, n) for n in samples)
    lead = view.labels[first]
    axes = {
        n: axis - lacks if axis >= lacks and view.shape(n)[axis - lacks] != 1 else -1
        for n, lacks in before.items()
    }
    return view.align(lead, axes), [label_sharded(axis, lead.blocks, lead.chosen)] * len(view.op.outputs)


def _without_samples(view: View, kind: str, every: Sequence[int], fixed: Collection[int]) -> Ruling:
    labels, outputs = view.labels, len(view.op.outputs)
    extreme = _EXTREMES.get(view.type)
    if extreme in labels and all(labels[number] in (extreme, REPLICATED) for number in every):
        return [extreme if number in every else None for number in range(len(labels))], [extreme]  # type: ignore[list-item]
    sums = [number for number in every if labels[number] == PARTIAL_SUM and number not in fixed]
    others = [view.values[number] for number in {*every, *fixed} - {*sums[:1]}]
    exact = kind == LINEAR or all(map(_CAN_SCALE.get(view.type, _keeps_signs), others))
    if kind == OTHER or not sums or not exact or (kind == QUOTIENT and sums[0] != every[0]):
        return [REPLICATED if n in every else None for n in range(len(labels))], [REPLICATED] * outputs
    kept = [number for number in every if number not in fixed] if kind == LINEAR else sums[:1]
    wants = [PARTIAL_SUM if n in kept else REPLICATED if n in every else None for n in range(len(labels))]
    return wants, [PARTIAL_SUM] * outputs


@rule(*_SUMS.split())
def _linear(view: View) -> Ruling:
    if view.type == "IdentityN":
        return [None] * len(view.labels), list(view.labels)
    if view.type == "Neg" and view.labels[0] in (PARTIAL_MAX, PARTIAL_MIN):
        # The least integer, of a part without samples, is its own negative.
        if view.values[0].dtype.is_integer:
            raise Gather
        return [None], [PARTIAL_MIN if view.labels[0] == PARTIAL_MAX else PARTIAL_MAX]
    label = view.labels[0]
    passes = is_partial(label) or label.kind == "sizes" or label.counts or view.values[0].dtype == tf.variant
    if len(view.labels) == 1 and passes and view.type != "Real":
        return [None], [label]
    return elementwise(view, LINEAR)


@rule("Cast")
def _cast(view: View) -> Ruling:
    label = view.labels[0]
    source, target = view.op.inputs[0].dtype, view.op.outputs[0].dtype
    if source.is_integer:  # a part of an unsigned difference may be negative, and wrap around
        signed = not source.is_unsigned
        exact = signed and is_finite(view.values[0]) and (target.is_floating or target.is_integer)
    else:
        exact = source.is_floating and target.is_floating and target.size >= source.size
    if label == PARTIAL_SUM and exact:
        return [None], [label]
    if label.kind == "sizes" or label.counts:
        if target == tf.bool or target.size < 4:  # the sum of what was rounded is not the rounded sum
            raise Gather
        return [None], [label]
    return elementwise(view, OTHER)


@rule("SelectV2", "Select")
def _select(view: View) -> Ruling:
    if view.type == "Select" and view.rank(0) != view.rank(1):
        raise Gather
    return elementwise(view, LINEAR, fixed=(0,))


@rule("ZerosLike", "OnesLike")
def _fill_like(view: View) -> Ruling:
    label = view.labels[0]
    return [None], [label._replace(counts=None) if is_sharded(label) else REPLICATED]


NOT_LINEAR = """
    Div Exp Log Log1p Expm1 Tanh Sigmoid Relu Relu6 Elu Selu Softplus Softsign LeakyRelu Abs Sign Sin Cos Tan Asin
    Acos Atan Erf Erfc Floor Ceil Round Rint IsNan IsInf IsFinite LogicalNot Cosh Sinh Asinh Acosh Atanh
    Lgamma Digamma Erfinv Ndtri Bitcast Angle ComplexAbs Invert Sqrt Square Rsqrt Reciprocal Inv Maximum
    Minimum Greater GreaterEqual Less LessEqual Equal NotEqual Pow SquaredDifference FloorMod FloorDiv Mod
    LogicalAnd LogicalOr Xlogy Xdivy Atan2 ClipByValue TruncateDiv TruncateMod ApproximateEqual BitwiseAnd
    BitwiseOr BitwiseXor LeftShift RightShift Xlog1py Complex Imag Conj Igamma Igammac CheckNumerics NextAfter
    BesselI0e BesselI1e StringLower StringStrip StringLength AsString StringToNumber StringToHashBucketFast
    RegexReplace StaticRegexReplace StringJoin Bucketize
"""


for _kind, _types in ((PRODUCT, "Mul MulNoNan"), (QUOTIENT, "RealDiv DivNoNan"), (OTHER, NOT_LINEAR)):
    rule(*_types.split())(functools.partial(elementwise, kind=_kind))


GRADIENTS = {  # number of the operand that is the gradient: the operation is linear in it
    "ReluGrad": 0, "Relu6Grad": 0, "LeakyReluGrad": 0, "EluGrad": 0, "SeluGrad": 0, "SoftplusGrad": 0, "SoftsignGrad": 0,
    "TanhGrad": 1, "SigmoidGrad": 1, "SqrtGrad": 1, "RsqrtGrad": 1, "ReciprocalGrad": 1, "InvGrad": 1,
}  # fmt: skip


@rule(*GRADIENTS)
def _gradient(view: View) -> Ruling:
    others = [number for number in range(len(view.labels)) if number != GRADIENTS[view.type]]
    return elementwise(view, PRODUCT, fixed=others)


@rule("EnsureShape")
def _ensure_shape(view: View) -> Ruling:
    label = view.labels[0]
    if is_sharded(label) and tf.TensorShape(view.op.get_attr("shape"))[label.axis] is not None:
        return [REPLICATED], [REPLICATED]
    return [None], [label]


for _types in (_SUMS, "SelectV2 Mul MulNoNan RealDiv DivNoNan Div", NOT_LINEAR, " ".join(GRADIENTS)):
    SHAPES.update({name: broadcast for name in _types.split() if name not in SHAPES})
