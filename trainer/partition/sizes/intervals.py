"""Bounds of a step's numbers: a rule for each type of operation, none without one.

A partial sum is multiplied before it is summed where no factor is infinite, and divided where no divisor is 0: `0 * inf` and
`0 / 0` of a part are not the part of a product or a quotient.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .size import Extent, Size, is_open, never_negative
from .size_arrays import product

Interval = tuple[float, float]
"""The least and the largest value that a number can have, unless it is NaN."""

ANY: Interval = (-math.inf, math.inf)
_MOST_SAMPLES = 2**31 - 1  # counts of samples are int32


def find_interval(op: tf.Operation, number: int, inputs: Sequence[Any], value: np.ndarray | None) -> Interval:
    """Return the bounds of output `number`, from the `Value` of each input, or from the `value` that is known of it."""
    dtype = op.outputs[number].dtype
    if dtype == tf.bool:
        return 0, 1
    if op.type == "Const" and dtype != tf.string:
        found = _of_constant(tf.make_ndarray(op.get_attr("value")))
    elif not (dtype.is_floating or dtype.is_integer):
        return ANY
    elif value is not None and value.size:
        bounds = [_of_size(each) for each in value.flat]
        found = (
            min(low for low, _ in bounds),
            min(max(high for _, high in bounds), float(dtype.max)),
        )  # sizes fit
    else:
        found = INTERVALS[op.type](op, inputs) if op.type in INTERVALS else ANY
    if dtype.is_complex:
        return found
    if dtype.is_integer:  # it wraps around
        return found if dtype.min <= found[0] and found[1] <= dtype.max else ANY
    limit = float(dtype.max) / 2  # a comparison in float16 would overflow
    return (found[0] if found[0] >= -limit else -math.inf), (found[1] if found[1] <= limit else math.inf)


def is_finite(value: Any) -> bool:
    """Return whether no number is infinite, and no integer wrapped around."""
    return math.isfinite(value.interval[0]) and math.isfinite(value.interval[1])


def is_not_zero(value: Any) -> bool:
    """Return whether no number is 0, nor so small that its computation may round it to 0."""
    low, high = value.interval
    tiny = np.finfo(value.dtype.as_numpy_dtype).tiny if value.dtype.is_floating else 0
    return low > tiny or high < -tiny


def _of_constant(array: np.ndarray) -> Interval:
    if array.dtype.kind == "c":
        most = float(np.abs(array).max(initial=0))
        return -most, most
    numbers = array[array == array]
    return (float(numbers.min()), float(numbers.max())) if numbers.size else (0, 0)


def _of_size(size: Extent) -> Interval:
    if size is None or not is_open(size):
        return ANY if size is None else (float(size), float(size))  # type: ignore[arg-type]
    low = 1 if never_negative(size - 1) else 0 if never_negative(size) else -math.inf
    return low, _largest(size) if low >= 0 else math.inf


def _largest(size: Extent) -> float:
    if size is None:
        return math.inf
    terms = size.terms.items() if isinstance(size, Size) else [((), size)]
    return float(sum(max(factor, 0) * _MOST_SAMPLES ** len(term) for term, factor in terms))


def _combine_bounds(fn: Callable[[float, float], float]) -> Callable[..., Interval]:
    """Return a rule for an operation on two numbers whose extremes are those of the bounds."""

    def rule(op: tf.Operation, inputs: Sequence[Any]) -> Interval:
        one, other = (value.interval for value in inputs)
        found = [fn(a, b) for a in one for b in other]
        return ANY if any(map(math.isnan, found)) else (min(found), max(found))

    return rule


def _map_bounds(fn: Callable[[float], float]) -> Callable[..., Interval]:
    def rule(op: tf.Operation, inputs: Sequence[Any]) -> Interval:
        low, high = inputs[0].interval
        return fn(low), fn(high)

    return rule


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _quotient(op: tf.Operation, inputs: Sequence[Any]) -> Interval:
    if not is_not_zero(inputs[1]):
        return ANY
    return _combine_bounds(lambda a, b: a / b)(op, inputs)


def _square(op: tf.Operation, inputs: Sequence[Any]) -> Interval:
    low, high = (number * number for number in inputs[0].interval)
    return (min(low, high) if is_not_zero(inputs[0]) else 0), max(low, high)


def _power(op: tf.Operation, inputs: Sequence[Any]) -> Interval:
    (low, high), exponent = inputs[0].interval, inputs[1].interval
    if low < 0 or exponent[0] != exponent[1] or exponent[0] < 0 or high > 1e30 or exponent[0] > 8:
        return ANY
    return low ** exponent[0], high ** exponent[0]


def _sum(op: tf.Operation, inputs: Sequence[Any]) -> Interval:
    """Return the bounds of a sum over any axes, which has at most as many terms as the tensor."""
    low, high = inputs[0].interval
    most = _largest(product(inputs[0].shape)) if inputs[0].shape is not None else math.inf
    return (low * most if low < 0 else 0), (high * most if high > 0 else 0)


def _cast(op: tf.Operation, inputs: Sequence[Any]) -> Interval:
    source = inputs[0].dtype
    if source.is_integer and inputs[0].interval == ANY:
        return float(source.min), float(source.max)
    makes_integers = op.outputs[0].dtype.is_integer and not (source.is_integer or source == tf.bool)
    return ANY if makes_integers else inputs[0].interval  # NaN becomes the least integer


def _of(number: int = 0) -> Callable[..., Interval]:
    return lambda op, inputs: inputs[number].interval


def _within(low: float, high: float) -> Callable[..., Interval]:
    return lambda op, inputs: (low, high)


_RULES: dict[str, Callable[..., Interval]] = {
    "Identity StopGradient PreventGradient Snapshot Reshape ExpandDims Squeeze Transpose BroadcastTo Tile "
    "StridedSlice Slice ReverseV2 Mean EnsureShape": _of(),
    "Fill": _of(1),
    "Tanh Sin Cos Erf Sign": _within(-1, 1),
    "Sigmoid Softmax": _within(0, 1),
    "ZerosLike": _within(0, 0),
    "OnesLike": _within(1, 1),
    "AddV2 Add": _combine_bounds(lambda a, b: a + b),
    "Sub": lambda op, inputs: (
        inputs[0].interval[0] - inputs[1].interval[1],
        inputs[0].interval[1] - inputs[1].interval[0],
    ),
    "Mul MulNoNan": _combine_bounds(lambda a, b: 0.0 if 0 in (a, b) and math.inf not in map(abs, (a, b)) else a * b),
    "RealDiv": _quotient,
    "Maximum": _combine_bounds(max),
    "Minimum": _combine_bounds(min),
    "Neg": lambda op, inputs: (-inputs[0].interval[1], -inputs[0].interval[0]),
    "Exp": _map_bounds(_exp),
    "Relu": _map_bounds(lambda x: max(x, 0.0)),
    "Sqrt": _map_bounds(lambda x: math.sqrt(max(x, 0.0))),
    "Square": _square,
    "Pow": _power,
    "Abs": lambda op, inputs: (
        max(inputs[0].interval[0], -inputs[0].interval[1], 0.0),
        max(map(abs, inputs[0].interval)),
    ),
    "Sum": _sum,
    "Cast": _cast,
}  # fmt: skip
INTERVALS = {name: rule for names, rule in _RULES.items() for name in names.split()}
"""By the type of an operation: `fn(op, inputs)`, the bounds of its outputs."""
