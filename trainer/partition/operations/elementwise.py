"""Operations on each element, which broadcast their inputs against each other."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from ..labels import (
    EMPTY,
    PARTIAL_MAX,
    PARTIAL_MIN,
    PARTIAL_SUM,
    REPLICATED,
    counts_values,
    is_not_gathered,
    is_partial,
    is_sharded,
)
from ..sizes.bounds import ANY, Interval, bound_by, combine_bounds, is_finite, is_not_zero, map_bounds
from ..sizes.positions import add_progressions, keep_if_not_negative, keep_progression, multiply_progression
from ..sizes.size import at_most, divide, equal, if_known, largest, never_negative, smallest
from ..sizes.size_arrays import Unknown, as_sizes
from .call import Call, Ruling, Shapes, View, keep_shape
from .number_rules import (
    add,
    both,
    compute_each,
    either,
    keep_list_elements,
    move_elements,
    multiply,
    negate,
    numbers_of,
    subtract,
)
from .row import COMPARES, add_rows, is_any, is_factor, part_by_terms
from .terms import FIRST, PRODUCT, SUM, Terms, terms_of_broadcast
from .value_places import label_difference, label_one_of_places, label_sum_of_places


def _add(types: str, **fields: Any) -> None:
    add_rows(types, **{"terms": terms_of_broadcast, "reason": COMPARES, **fields})


def _label_copy(view: View) -> Ruling | None:
    label = view.labels[0]
    passes = (
        is_partial(label)
        or label.kind == "sizes"
        or counts_values(label)
        or view.values[0].dtype == tf.variant
    )
    return ([None], [label]) if len(view.labels) == 1 and passes else None


_SAME: Any = {"numbers": move_elements(), "progression": keep_progression}
_SAME |= {"label": _label_copy, "moves": 0, "copies": True, "elements": keep_list_elements}
_PASSED: Any = {**_SAME, "keeps_stored": True, "part": part_by_terms}
_add("Identity", **_PASSED, adds=True)
_add("StopGradient", **_PASSED)
_add("PreventGradient Snapshot", **_SAME)


def _label_copies(view: View) -> Ruling:
    whole = [is_not_gathered(label) for label in view.labels]
    wants = [REPLICATED if each else None for each in whole]
    return wants, [REPLICATED if each else label for each, label in zip(whole, view.labels)]


add_rows(
    "IdentityN",
    label=_label_copies,
    shape=lambda call: [value.shape for value in call.values],
    linear=SUM,
)


def _label_cast(view: View) -> Ruling | None:
    label = view.labels[0]
    source, target = view.op.inputs[0].dtype, view.op.outputs[0].dtype
    if source.is_integer:  # a part of an unsigned difference may be negative, and wrap around
        signed = not source.is_unsigned
        exact = signed and is_finite(view.values[0]) and (target.is_floating or target.is_integer)
    else:
        exact = source.is_floating and target.is_floating and target.size >= source.size
    if label == PARTIAL_SUM:
        return ([None], [label]) if exact else view.gather()
    if counts_values(label):
        return ([None], [label]) if target in (tf.int32, tf.int64) else view.gather()
    if label.kind != "sizes":
        return None
    # The sum of what was rounded is not the rounded sum.
    return view.gather() if target == tf.bool or target.size < 4 else ([None], [label])


def _cast_numbers(call: Call, number: int) -> np.ndarray:
    if call.op.inputs[0].dtype not in (tf.int32, tf.int64, tf.bool):
        raise Unknown
    to_bool = call.op.outputs[0].dtype == tf.bool
    cast = (lambda x: negate(equal(x, 0))) if to_bool else if_known(lambda x: x + 0)
    return as_sizes(np.frompyfunc(cast, 1, 1)(numbers_of(call.values[0])))


def _bound_cast(call: Call) -> Interval:
    source, found = call.values[0].dtype, call.values[0].interval
    if source.is_integer and found == ANY:
        return float(source.min), float(source.max)
    makes_integers = call.op.outputs[0].dtype.is_integer and not (source.is_integer or source == tf.bool)
    return ANY if makes_integers else found  # NaN becomes the least integer


_CAST: Any = {
    "label": _label_cast,
    "numbers": _cast_numbers,
    "bounds": _bound_cast,
    "progression": keep_progression,
}
_add("Cast", **_CAST, linear=SUM, keeps_stored=True, part=part_by_terms)


def _label_ensure_shape(view: View) -> Ruling:
    label = view.labels[0]
    fixes = is_sharded(label) and tf.TensorShape(view.attr("shape"))[label.axis] is not None
    return view.gather() if fixes else ([None], [label])


add_rows("EnsureShape", label=_label_ensure_shape, shape=keep_shape(), moves=0)
_LIKE: Any = {"shape": keep_shape(), "of_sizes": True}


def _label_like(view: View) -> Ruling:
    (label,) = view.labels
    return view.gather() if counts_values(label) else ([None], [label if is_sharded(label) else REPLICATED])


_LIKE |= {"label": _label_like}
add_rows("ZerosLike", bounds=bound_by(0, 0), **_LIKE)
add_rows("OnesLike", bounds=bound_by(1, 1), **_LIKE)


def _label_negative(view: View) -> Ruling | None:
    label = view.labels[0]
    if label not in (PARTIAL_MAX, PARTIAL_MIN):
        return view.gather() if counts_values(label) else _label_copy(view)
    # The least integer, of a part without samples, is its own negative.
    opposite = PARTIAL_MIN if label == PARTIAL_MAX else PARTIAL_MAX
    return view.gather() if view.values[0].dtype.is_integer else ([None], [opposite])


def _find_common_shape(call: Call) -> Shapes:
    """Return the shape that all inputs have, with each extent that is known of one; an empty list has no elements yet."""
    filled = [value.shape for value in call.values if value.shape is not None and value.label != EMPTY]
    known = filled or [value.shape for value in call.values if value.shape is not None]
    return [
        [next((each for each in axis if each is not None), None) for axis in zip(*known)] if known else None
    ]


_SUM: Any = {"numbers": compute_each(add), "bounds": combine_bounds(lambda a, b: a + b), "linear": SUM}
_SUM |= {"progression": add_progressions, "label": label_sum_of_places}
_add("AddV2", **_SUM, adds=True, part=part_by_terms)
_add("Add", **_SUM)
_add("AddN", label=_label_copy, shape=_find_common_shape, linear=SUM, adds=True, part=part_by_terms)


_add(
    "Sub",
    label=label_difference,
    linear=SUM,
    numbers=compute_each(subtract),
    bounds=combine_bounds(lambda a, b: a - b),
)
_add(
    "Neg",
    label=_label_negative,
    linear=SUM,
    numbers=compute_each(lambda x: subtract(0, x), 1),
    bounds=lambda call: (-call.values[0].interval[1], -call.values[0].interval[0]),
)
_add("Real", linear=SUM)


def _multiply(one: Any, other: Any) -> Any:
    return 0 if 0 in (one, other) else multiply(one, other)


def _bound_product(one: float, other: float) -> float:
    return 0.0 if 0 in (one, other) and math.inf not in (abs(one), abs(other)) else one * other


_quotient = combine_bounds(lambda a, b: a / b)
_PRODUCT: Any = {"linear": PRODUCT, "bounds": combine_bounds(_bound_product)}
_SCALED: Any = {"part": part_by_terms, "scalar_scales": True}
_add("Mul", **_PRODUCT, **_SCALED, numbers=compute_each(_multiply), progression=multiply_progression)
_add("MulNoNan", **_PRODUCT)
_add(
    "RealDiv",
    linear=FIRST,
    bounds=lambda call: _quotient(call) if is_not_zero(call.values[1]) else ANY,
    **_SCALED,
)
_add("DivNoNan", linear=FIRST, scales=is_any)


def _select(condition: bool | None, one: Any, other: Any) -> Any:
    if condition is None:
        return one if one is not None and one == other else None
    return one if condition else other


def _terms_of_old_select(call: Call) -> Terms:
    if call.rank(0) != call.rank(1):
        raise Unknown
    return terms_of_broadcast(call)


_add("SelectV2", linear=SUM, fixed=(0,), numbers=compute_each(_select, 3))
add_rows("Select", terms=_terms_of_old_select, shape=keep_shape(1), linear=SUM, fixed=(0,))

_MAXIMUM: Any = {"bounds": combine_bounds(max), "progression": keep_if_not_negative}
_MAXIMUM |= {"label": label_one_of_places}
_add("Maximum", keeps=[PARTIAL_MAX], numbers=compute_each(largest), **_MAXIMUM)
_add(
    "Minimum",
    keeps=[PARTIAL_MIN],
    numbers=compute_each(smallest),
    bounds=combine_bounds(min),
    label=label_one_of_places,
)
_add("LogicalOr", keeps=[PARTIAL_MAX], numbers=compute_each(either))
_add("LogicalAnd", keeps=[PARTIAL_MIN], numbers=compute_each(both))
_add("LogicalNot", numbers=compute_each(negate, 1))


def _terms_of_comparison(call: Call) -> Terms:
    if not call.attr("incompatible_shape_error"):
        pairs = zip(*(reversed(call.shape(number)) for number in (0, 1)))
        if not all(1 in pair or equal(*pair) for pair in pairs):
            raise Unknown  # a number, where the shapes do not match
    return terms_of_broadcast(call)


_add("Equal", terms=_terms_of_comparison, numbers=compute_each(equal))
_add("NotEqual", terms=_terms_of_comparison, numbers=compute_each(lambda x, y: negate(equal(x, y))))
_add("LessEqual", numbers=compute_each(at_most))
_add("GreaterEqual", numbers=compute_each(lambda x, y: at_most(y, x)))
_add("Less", numbers=compute_each(lambda x, y: negate(at_most(y, x))))
_add("Greater", numbers=compute_each(lambda x, y: negate(at_most(x, y))))


def _truncate(part: int) -> Callable[[Any, Any], Any]:
    """Return the quotient or the remainder of a division that rounds towards 0; the signs decide whether it rounds down."""

    def fn(one: Any, other: Any) -> Any:
        down = None not in (one, other) and never_negative(one) and never_negative(other)
        quotient, rest = divide(one, other)
        return (quotient, rest)[part] if down or rest == 0 else None

    return fn


def _bound_modulo(call: Call) -> Interval:
    low, high = call.values[1].interval
    return (0, high - 1) if low > 0 and call.values[1].dtype.is_integer else ANY


_add("FloorDiv", numbers=compute_each(lambda x, y: divide(x, y)[0]))
_add("FloorMod", numbers=compute_each(lambda x, y: divide(x, y)[1]), bounds=_bound_modulo)
_add("TruncateDiv Div", numbers=compute_each(_truncate(0)))
_add("TruncateMod Mod", numbers=compute_each(_truncate(1)))


def _bound_square(call: Call) -> Interval:
    low, high = (number * number for number in call.values[0].interval)
    return (min(low, high) if is_not_zero(call.values[0]) else 0), max(low, high)


def _bound_power(call: Call) -> Interval:
    (low, high), exponent = (value.interval for value in call.values)
    if low < 0 or exponent[0] != exponent[1] or exponent[0] < 0 or high > 1e30 or exponent[0] > 8:
        return ANY
    return low ** exponent[0], high ** exponent[0]


def _bound_absolute(call: Call) -> Interval:
    low, high = call.values[0].interval
    return max(low, -high, 0.0), max(abs(low), abs(high))


_add("Tanh Sin Cos Erf Sign", bounds=bound_by(-1, 1))
_add("Sigmoid", bounds=bound_by(0, 1))
_add("Exp", bounds=map_bounds(lambda x: math.exp(x) if x < 700 else math.inf))
_add("Relu", bounds=map_bounds(lambda x: max(x, 0.0)))
_add("Sqrt", bounds=map_bounds(lambda x: math.sqrt(max(x, 0.0))))
_add("Square", bounds=_bound_square)
_add("Pow", bounds=_bound_power)
_add("Abs", bounds=_bound_absolute)


def _terms_of_equal_sizes(call: Call) -> Terms:
    if call.op.inputs[0].dtype.size != call.op.outputs[0].dtype.size:
        raise Unknown
    return terms_of_broadcast(call)


add_rows("Bitcast", terms=_terms_of_equal_sizes)
_add("""
    Log Log1p Expm1 Relu6 Elu Selu Softplus Softsign LeakyRelu Tan Asin Acos Atan Erfc Floor Ceil Round Rint IsNan IsInf
    IsFinite Cosh Sinh Asinh Acosh Atanh Lgamma Digamma Erfinv Ndtri Angle ComplexAbs Invert Rsqrt Reciprocal Inv
    SquaredDifference Xlogy Xdivy Atan2 ClipByValue ApproximateEqual BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift
    Xlog1py Complex Imag Conj Igamma Igammac CheckNumerics NextAfter BesselI0e BesselI1e StringLower StringStrip
    StringLength AsString StringToNumber StringToHashBucketFast RegexReplace StaticRegexReplace StringJoin Bucketize
""")
_add("ReluGrad Relu6Grad", linear=PRODUCT, fixed=(1,), scales=is_any)
_add("EluGrad SeluGrad SoftplusGrad SoftsignGrad LeakyReluGrad", linear=PRODUCT, fixed=(1,), scales=is_factor)
_add("TanhGrad SigmoidGrad", linear=PRODUCT, fixed=(0,), scales=is_factor)
_add("SqrtGrad RsqrtGrad ReciprocalGrad InvGrad", linear=PRODUCT, fixed=(0,))
