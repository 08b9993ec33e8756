"""Operations on each element, which broadcast their inputs against each other."""

import math
from collections.abc import Callable
from typing import Any

from ..labels import EMPTY, PARTIAL_MAX, PARTIAL_MIN
from ..sizes.bounds import ANY, Interval, bound_by, combine_bounds, is_not_zero, map_bounds
from ..sizes.positions import add_progressions, keep_if_not_negative, multiply_progression
from ..sizes.size import at_most, divide, equal, largest, never_negative, smallest
from ..sizes.size_arrays import Unknown
from .call import Call, Ruling, Shapes, View, keep_shape
from .copies import add_elementwise, label_copy
from .number_rules import add, both, compute_each, either, multiply, negate, subtract
from .row import add_rows, is_any, is_factor, part_by_terms
from .terms import FIRST, PRODUCT, SUM, Terms, terms_of_broadcast
from .value_places import label_difference, label_not_negative, label_one_of_places, label_sum_of_places


def _label_negative(view: View) -> Ruling | None:
    label = view.labels[0]
    if label not in (PARTIAL_MAX, PARTIAL_MIN):
        return view.gather() if label.counts_values or label.is_count else label_copy(view)
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
add_elementwise("AddV2", **_SUM, adds=True, part=part_by_terms)
add_elementwise("Add", **_SUM)
add_elementwise("AddN", label=label_copy, shape=_find_common_shape, linear=SUM, adds=True, part=part_by_terms)


add_elementwise(
    "Sub",
    label=label_difference,
    linear=SUM,
    numbers=compute_each(subtract),
    bounds=combine_bounds(lambda a, b: a - b),
)
add_elementwise(
    "Neg",
    label=_label_negative,
    linear=SUM,
    numbers=compute_each(lambda x: subtract(0, x), 1),
    bounds=lambda call: (-call.values[0].interval[1], -call.values[0].interval[0]),
)
add_elementwise("Real", linear=SUM)


def _multiply(one: Any, other: Any) -> Any:
    return 0 if 0 in (one, other) else multiply(one, other)


def _bound_product(one: float, other: float) -> float:
    return 0.0 if 0 in (one, other) and math.inf not in (abs(one), abs(other)) else one * other


_quotient = combine_bounds(lambda a, b: a / b)
_PRODUCT: Any = {"linear": PRODUCT, "bounds": combine_bounds(_bound_product)}
_SCALED: Any = {"part": part_by_terms, "scalar_scales": True}
add_elementwise(
    "Mul", **_PRODUCT, **_SCALED, numbers=compute_each(_multiply), progression=multiply_progression
)
add_elementwise("MulNoNan", **_PRODUCT)
add_elementwise(
    "RealDiv",
    linear=FIRST,
    bounds=lambda call: _quotient(call) if is_not_zero(call.values[1]) else ANY,
    **_SCALED,
)
add_elementwise("DivNoNan", linear=FIRST, scales=is_any)


def _select(condition: bool | None, one: Any, other: Any) -> Any:
    if condition is None:
        return one if one is not None and one == other else None
    return one if condition else other


def _terms_of_old_select(call: Call) -> Terms:
    if call.rank(0) != call.rank(1):
        raise Unknown
    return terms_of_broadcast(call)


add_elementwise("SelectV2", linear=SUM, fixed=(0,), numbers=compute_each(_select, 3))
add_rows("Select", terms=_terms_of_old_select, shape=keep_shape(1), linear=SUM, fixed=(0,))

_MAXIMUM: Any = {"bounds": combine_bounds(max), "progression": keep_if_not_negative}
_MAXIMUM |= {"label": label_one_of_places}
add_elementwise("Maximum", keeps=[PARTIAL_MAX], numbers=compute_each(largest), **_MAXIMUM)
add_elementwise(
    "Minimum",
    keeps=[PARTIAL_MIN],
    numbers=compute_each(smallest),
    bounds=combine_bounds(min),
    label=label_one_of_places,
)
add_elementwise("LogicalOr", keeps=[PARTIAL_MAX], numbers=compute_each(either))
add_elementwise("LogicalAnd", keeps=[PARTIAL_MIN], numbers=compute_each(both))
add_elementwise("LogicalNot", numbers=compute_each(negate, 1))


def _terms_of_comparison(call: Call) -> Terms:
    if not call.attr("incompatible_shape_error"):
        pairs = zip(*(reversed(call.shape(number)) for number in (0, 1)))
        if not all(1 in pair or equal(*pair) for pair in pairs):
            raise Unknown  # a number, where the shapes do not match
    return terms_of_broadcast(call)


add_elementwise("Equal", terms=_terms_of_comparison, numbers=compute_each(equal))
add_elementwise(
    "NotEqual", terms=_terms_of_comparison, numbers=compute_each(lambda x, y: negate(equal(x, y)))
)
add_elementwise("LessEqual", numbers=compute_each(at_most))
add_elementwise("GreaterEqual", label=label_not_negative, numbers=compute_each(lambda x, y: at_most(y, x)))
add_elementwise("Less", numbers=compute_each(lambda x, y: negate(at_most(y, x))))
add_elementwise("Greater", numbers=compute_each(lambda x, y: negate(at_most(x, y))))


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


add_elementwise("FloorDiv", numbers=compute_each(lambda x, y: divide(x, y)[0]))
add_elementwise("FloorMod", numbers=compute_each(lambda x, y: divide(x, y)[1]), bounds=_bound_modulo)
add_elementwise("TruncateDiv Div", numbers=compute_each(_truncate(0)))
add_elementwise("TruncateMod Mod", numbers=compute_each(_truncate(1)))


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


add_elementwise("Tanh Sin Cos Erf Sign", bounds=bound_by(-1, 1))
add_elementwise("Sigmoid", bounds=bound_by(0, 1))
add_elementwise("Exp", bounds=map_bounds(lambda x: math.exp(x) if x < 700 else math.inf))
add_elementwise("Relu", bounds=map_bounds(lambda x: max(x, 0.0)))
add_elementwise("Sqrt", bounds=map_bounds(lambda x: math.sqrt(max(x, 0.0))))
add_elementwise("Square", bounds=_bound_square)
add_elementwise("Pow", bounds=_bound_power)
add_elementwise("Abs", bounds=_bound_absolute)


add_elementwise("""
    Log Log1p Expm1 Relu6 Elu Selu Softplus Softsign LeakyRelu Tan Asin Acos Atan Erfc Floor Ceil Round Rint IsNan IsInf
    IsFinite Cosh Sinh Asinh Acosh Atanh Lgamma Digamma Erfinv Ndtri Angle ComplexAbs Invert Rsqrt Reciprocal Inv
    SquaredDifference Xlogy Xdivy Atan2 ClipByValue ApproximateEqual BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift
    Xlog1py Complex Imag Conj Igamma Igammac CheckNumerics NextAfter BesselI0e BesselI1e StringLower StringStrip Betainc
    Zeta Polygamma BesselI0 BesselI1 StringLength AsString StringToNumber StringToHashBucketFast RegexReplace
    StaticRegexReplace StringJoin Bucketize
""")


# Gradients of functions of each element broadcast nothing, and not all kernels check it.
_GRADIENT: Any = {
    "terms": lambda call: Terms([call.names()] * 2, [call.names()]),
    "shape": _find_common_shape,
    "linear": PRODUCT,
}
add_rows("ReluGrad Relu6Grad", fixed=(1,), scales=is_any, **_GRADIENT)
add_rows(
    "EluGrad SeluGrad SoftplusGrad SoftsignGrad LeakyReluGrad", fixed=(1,), scales=is_factor, **_GRADIENT
)
add_rows("TanhGrad SigmoidGrad", fixed=(0,), scales=is_factor, **_GRADIENT)
add_rows("SqrtGrad RsqrtGrad ReciprocalGrad InvGrad", fixed=(0,), **_GRADIENT)
