"""Calls of operations with a state or a list: what `operation_calls.txt` cannot say, as functions of one tensor.

Each returns what is the same on one device and on replicas. Of a draw that is what it preserves: its shape, its bounds, that
no two samples get one number, and that a number which all samples share is one number.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from unisono.compat.tensorflow_graphs.ragged_values import number_samples, take_values
from unisono.distribute.attention.operation import attend


@dataclasses.dataclass(frozen=True)
class Declared:
    """A call: `fn(x, **attributes)`, the types that it runs, the values of attributes, and whether a step rejects it."""

    fn: Callable[..., Any]
    types: tuple[str, ...]
    choices: dict[str, Sequence[Any]]
    rejected: bool = False


DECLARED: dict[str, Declared] = {}
"""By the type of the operation."""


def _declare(types: str, rejected: bool = False, **choices: Sequence[Any]) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        for name in types.split():
            own = functools.partial(fn, name) if "kind" in fn.__code__.co_varnames[:1] else fn
            DECLARED[name] = Declared(own, tuple(types.split()), choices, rejected)
        return fn

    return add


@_declare("Attention AttentionGradient", causal=[True, False])
def _attend(x: Any, causal: bool) -> Any:
    x = tf.tanh(tf.reshape(x, [tf.shape(x)[0], -1]))[:, :1]  # one number a sample
    q = x[:, None, None, None] * tf.reshape(tf.range(1, 13, dtype=x.dtype), [3, 2, 1, 2])
    k = x[:, None, None] * tf.reshape(tf.range(1, 9, dtype=x.dtype), [2, 2, 2])
    with tf.GradientTape() as tape:
        tape.watch([q, k])
        out = attend(q, k, 1 + k, None, causal, lambda *_: None)
        squares = out * out
    return out, *tape.gradient(squares, [q, k])


# Lists


@_declare("TensorListReserve TensorListSetItem TensorListStack TensorListGetItem", grows=[True, False])
def _write(x: Any, grows: bool) -> Any:
    array = tf.TensorArray(
        x.dtype, 0 if grows else 3, dynamic_size=grows, infer_shape=False, element_shape=x.shape
    )
    for number in range(3):
        array = array.write(number, x * (number + 1.0))
    return array.stack(), array.read(1)


@_declare("EmptyTensorList TensorListPushBack TensorListPopBack TensorListLength TensorListElementShape")
def _push(x: Any) -> Any:
    handle = tf.raw_ops.EmptyTensorList(element_shape=tf.shape(x), max_num_elements=-1, element_dtype=x.dtype)
    for each in (x, x * 2, tf.exp(-tf.abs(x))):
        handle = tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=each)
    length = tf.raw_ops.TensorListLength(input_handle=handle)
    shape = tf.raw_ops.TensorListElementShape(input_handle=handle, shape_type=tf.int32)
    handle, last = tf.raw_ops.TensorListPopBack(
        input_handle=handle, element_shape=tf.shape(x), element_dtype=x.dtype
    )
    return last, length, tf.size(shape), tf.raw_ops.TensorListLength(input_handle=handle)


@_declare("TensorListResize", size=[2, 3])
def _resize(x: Any, size: int) -> Any:
    handle = tf.raw_ops.TensorListReserve(element_shape=tf.shape(x), num_elements=1, element_dtype=x.dtype)
    handle = tf.raw_ops.TensorListResize(input_handle=handle, size=size)
    for number in range(size):
        handle = tf.raw_ops.TensorListSetItem(input_handle=handle, index=number, item=x * (number + 1.0))
    return tf.raw_ops.TensorListStack(input_handle=handle, element_shape=tf.shape(x), element_dtype=x.dtype)


@_declare("TensorListFromTensor TensorListGather", along=[0, 1])
def _from_tensor(x: Any, along: int) -> Any:
    x = tf.stack([x, x * 2], along if x.shape.rank else 0)
    handle = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=tf.shape(x)[1:])
    found = tf.raw_ops.TensorListGather(
        input_handle=handle,
        indices=tf.range(tf.shape(x)[0])[::-1],
        element_shape=tf.shape(x)[1:],
        element_dtype=x.dtype,
    )
    return found, tf.raw_ops.TensorListLength(input_handle=handle)


@_declare("TensorListScatterV2 TensorListScatterIntoExistingList", along=[0, 1])
def _scatter(x: Any, along: int) -> Any:
    x = tf.stack([x, x * 2], along if x.shape.rank else 0)
    places = tf.range(tf.shape(x)[0])
    handle = tf.raw_ops.TensorListScatterV2(
        tensor=x, indices=places, element_shape=tf.shape(x)[1:], num_elements=-1
    )
    handle = tf.raw_ops.TensorListScatterIntoExistingList(input_handle=handle, tensor=x * 3, indices=places)
    return tf.raw_ops.TensorListStack(
        input_handle=handle, element_shape=tf.shape(x)[1:], element_dtype=x.dtype
    )


@_declare("TensorListSplit TensorListConcatV2", along=[0, 1])
def _split(x: Any, along: int) -> Any:
    x = tf.concat([tf.stack([x, x * 2], along if x.shape.rank else 0)] * 2, 0)
    half = tf.shape(x, tf.int64)[0] // 2
    handle = tf.raw_ops.TensorListSplit(
        tensor=x, element_shape=tf.concat([[-1], tf.shape(x)[1:]], 0), lengths=tf.stack([half, half])
    )
    found, lengths = tf.raw_ops.TensorListConcatV2(
        input_handle=handle,
        element_shape=tf.concat([[-1], tf.shape(x)[1:]], 0),
        leading_dims=tf.zeros([0], tf.int64),
        element_dtype=x.dtype,
    )
    return found, tf.reduce_sum(lengths)


@_declare("OptionalNone OptionalFromValue OptionalGetValue")
def _optional(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        known = tf.reduce_sum(tf.cast(tf.math.is_finite(x), tf.int32)) >= 0
        y = tf.cond(known, lambda: tf.tanh(x) * tf.reduce_sum(x), lambda: tf.sigmoid(x))
    return y, tape.gradient(y, x)


# Draws


def _seed(x: Any, kind: str) -> Any:
    if kind == "constant":
        return tf.constant([3, 4])
    return (
        tf.random.uniform([2], maxval=99, dtype=tf.int32)
        if kind == "drawn"
        else tf.stack([tf.shape(x)[0], 5])
    )


def _shape(x: Any, size: str) -> Any:
    return {
        "samples": tf.stack([tf.shape(x)[0], 3]),
        "two": tf.stack([2 * tf.shape(x)[0], 3]),
        "fixed": [3, 2],
    }[size]


def _preserved(
    x: Any, drawn: Any, low: float = -math.inf, high: float = math.inf, repeats: bool = False
) -> Any:
    """The shape and the bounds of what was drawn, whether numbers repeat, and whether all samples have one number."""
    flat = tf.cast(tf.reshape(drawn, [-1]), tf.float64)
    differ = tf.size(tf.unique(flat)[0]) == tf.size(flat)
    ones, number = tf.ones_like(x, tf.float64), tf.reduce_max(flat)
    alike = tf.reduce_sum(ones * number) - tf.cast(tf.size(x), tf.float64) * number
    within = tf.reduce_all((flat >= low) & (flat <= high))
    close = tf.abs(alike) <= 1e-9 * tf.cast(tf.size(x), tf.float64) * tf.maximum(tf.abs(number), 1.0)
    return tf.shape(drawn), within, differ | repeats, close


_STATELESS: dict[str, Any] = {
    "StatelessRandomNormalV2": lambda shape, seed: tf.random.stateless_normal(shape, seed, dtype=tf.float64),
    "StatelessTruncatedNormalV2": lambda shape, seed: tf.random.stateless_truncated_normal(
        shape, seed, dtype=tf.float64
    ),
    "StatelessRandomUniformV2": lambda shape, seed: tf.random.stateless_uniform(
        shape, seed, dtype=tf.float64
    ),
    "StatelessRandomUniformIntV2": lambda shape, seed: tf.random.stateless_uniform(
        shape, seed, 0, 2**50, tf.int64
    ),
    "StatelessRandomUniformFullIntV2": lambda shape, seed: tf.random.stateless_uniform(
        shape, seed, None, None, tf.int64
    ),
}


@_declare(
    " ".join(_STATELESS),
    seed=["constant", "drawn", "computed"],
    size=["samples", "two", "fixed"],
    twice=[False, True],
)
def _draw_with_seed(kind: str, x: Any, seed: str, size: str, twice: bool) -> Any:
    key = _seed(x, seed)
    drawn = _STATELESS[kind](_shape(x, size), key)
    same = [drawn] if seed == "constant" else []
    if twice:  # one device begins both with the same numbers
        again = _STATELESS[kind](
            tf.stack([3 * tf.shape(x)[0], 3]), _seed(x, seed) if seed != "drawn" else key
        )
        both = tf.minimum(tf.shape(drawn)[0], tf.shape(again)[0])
        rows = tf.shape(drawn)[1] * both // 3
        same += [tf.reshape(drawn, [-1])[: 3 * rows] - tf.reshape(again, [-1])[: 3 * rows]]
    return [*_preserved(x, drawn), *same]


_STATEFUL: dict[str, Any] = {
    "RandomStandardNormal": lambda shape: tf.random.normal(shape, dtype=tf.float64),
    "TruncatedNormal": lambda shape: tf.random.truncated_normal(shape, dtype=tf.float64),
    "RandomUniform": lambda shape: tf.random.uniform(shape, dtype=tf.float64),
    "RandomUniformInt": lambda shape: tf.random.uniform(shape, 0, 2**50, tf.int64),
}


@_declare(" ".join(_STATEFUL), size=["samples", "two", "fixed"])
def _draw(kind: str, x: Any, size: str) -> Any:
    return _preserved(x, _STATEFUL[kind](_shape(x, size)))


@_declare("RandomGamma RandomPoissonV2", size=["samples", "fixed"])
def _draw_shared(kind: str, x: Any, size: str) -> Any:
    fn = tf.random.gamma if kind == "RandomGamma" else tf.random.poisson
    return _preserved(x, fn(_shape(x, size), tf.constant([2.0, 5.0])), 0, repeats=True)


@_declare("Multinomial")
def _draw_classes(x: Any) -> Any:
    logits = tf.zeros([tf.shape(x)[0], 5])
    return _preserved(x, tf.random.categorical(logits, 4), 0, 4, repeats=True)


def _without_nan(x: Any) -> Any:
    """The numbers that have an order."""
    return tf.where(tf.math.is_nan(x), tf.zeros_like(x), x)


@_declare("RandomShuffle", of=["samples", "positions", "words"])
def _shuffle(x: Any, of: str) -> Any:
    if of == "positions":
        places = tf.random.shuffle(tf.range(tf.shape(x)[0]))
        return tf.sort(places), tf.reduce_sum(tf.gather(x, places), 0)
    if of == "words":
        words = tf.random.shuffle(tf.as_string(tf.reshape(x, [-1])))
        return tf.sort(_without_nan(tf.cast(tf.strings.to_number(words), x.dtype)))
    shuffled = tf.random.shuffle(x)
    return tf.reduce_sum(shuffled, 0), tf.sort(_without_nan(shuffled), 0)


# Sizes and constants


@_declare("Empty")
def _empty(x: Any) -> Any:
    return x + tf.raw_ops.Empty(shape=tf.shape(x), dtype=x.dtype, init=True)


@_declare("Const")
def _constant(x: Any) -> Any:
    return x * tf.constant([1.5], x.dtype)


@_declare("BroadcastGradientArgs", keep=[False, True])
def _gradient_axes(x: Any, keep: bool) -> Any:
    small = tf.reduce_sum(x, 0, keepdims=keep)
    axes = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(small), s1=tf.shape(x))
    return [tf.reshape(tf.reduce_sum(x, own), tf.shape(each)) for own, each in zip(axes, (small, x))]


@_declare("CheckNumerics")
def _check(x: Any) -> Any:
    return tf.raw_ops.CheckNumerics(tensor=tf.where(tf.math.is_finite(x), x, tf.zeros_like(x)), message="")


@_declare("Assert")
def _assert(x: Any) -> Any:
    tf.debugging.Assert(tf.reduce_all(x < 1e300) | tf.reduce_any(x >= 1e300) | True, [x])
    return x


@_declare("PrintV2 StringFormat")
def _print(x: Any) -> Any:
    text = tf.strings.format("{}", tf.reduce_max(x, 0))
    tf.raw_ops.PrintV2(input=text, output_stream="log(info)")
    return x, tf.strings.length(text) > 0


# Variables and tables


@functools.cache
def _variable(kind: str, dtype: str) -> Any:
    with tf.init_scope():
        strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(3)])
        with strategy.scope():
            return tf.Variable(tf.reshape(tf.range(12, dtype=dtype), [4, 3]) / 4)


def _handle(variable: Any) -> Any:
    return variable.handle


@_declare("ReadVariableOp VarIsInitializedOp VariableShape", axis=[0, 1])
def _read(x: Any, axis: int) -> Any:
    variable = _variable("read", x.dtype.name)
    total = tf.reduce_sum(x) + tf.reduce_sum(variable.read_value(), axis)
    return (
        total,
        tf.raw_ops.VarIsInitializedOp(resource=_handle(variable)),
        tf.raw_ops.VariableShape(input=_handle(variable)),
    )


@_declare("ResourceGather")
def _look_up(x: Any) -> Any:
    return tf.raw_ops.ResourceGather(
        resource=_handle(_variable("read", x.dtype.name)), indices=_positions(x), dtype=x.dtype
    )


def _positions(x: Any) -> Any:
    finite = tf.where(tf.math.is_finite(x), x, tf.zeros_like(x))
    return tf.cast(tf.round(tf.abs(tf.sin(finite)) * 3), tf.int32)


def _begin(kind: str, x: Any) -> Any:
    """A variable of this operation, with known numbers."""
    variable = _variable(kind, x.dtype.name)
    variable.assign(tf.reshape(tf.range(12, dtype=x.dtype), [4, 3]) / 4 + 1)
    return variable


def _three(x: Any) -> Any:
    return tf.reduce_mean(tf.reshape(tf.where(tf.math.is_finite(x), x, tf.zeros_like(x)), [-1])) + tf.ones(
        [3], x.dtype
    )


@_declare("AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceStridedSliceAssign")
def _assign(kind: str, x: Any) -> Any:
    variable, value = _begin(kind, x), _three(x)
    if kind == "ResourceStridedSliceAssign":
        variable[1:3].assign(tf.stack([value, value * 2]))
    else:
        method = {"AssignVariableOp": "assign", "AssignAddVariableOp": "assign_add"}.get(kind, "assign_sub")
        getattr(variable, method)(tf.stack([value] * 4))
    return variable.read_value()


@_declare(" ".join(f"ResourceScatter{kind}" for kind in ["Add", "Sub", "Mul", "Div", "Min", "Max", "Update"]))
def _scatter_into(kind: str, x: Any) -> Any:
    variable, value = _begin(kind, x), _three(x)
    update = getattr(tf.raw_ops, kind)
    update(resource=_handle(variable), indices=tf.constant([2, 0]), updates=tf.stack([value, value * 2]))
    return variable.read_value()


@_declare(" ".join(f"ResourceScatterNd{kind}" for kind in ["Add", "Sub", "Min", "Max", "Update"]))
def _scatter_entries_into(kind: str, x: Any) -> Any:
    variable, value = _begin(kind, x), _three(x)
    update = getattr(tf.raw_ops, kind)
    update(ref=_handle(variable), indices=tf.constant([[2], [0]]), updates=tf.stack([value, value * 2]))
    return variable.read_value()


@functools.cache
def _table() -> Any:
    with tf.init_scope():
        keys = tf.constant([0, 1, 3], tf.int64)
        found = tf.lookup.KeyValueTensorInitializer(keys, tf.constant([0.5, -1.0, 2.0], tf.float64))
        return tf.lookup.StaticHashTable(found, 9.0)


@_declare("LookupTableFindV2 LookupTableExportV2 LookupTableSizeV2")
def _find(x: Any) -> Any:
    table = _table()
    keys, values = tf.raw_ops.LookupTableExportV2(
        table_handle=table.resource_handle, Tkeys=tf.int64, Tvalues=tf.float64
    )
    found = table.lookup(tf.cast(_positions(x), tf.int64))
    return found, table.size(), tf.sort(keys), tf.reduce_sum(values)


# What a step rejects: it runs on one replica


@_declare("PyFunc EagerPyFunc", rejected=True)
def _python(kind: str, x: Any) -> Any:
    make = tf.numpy_function if kind == "PyFunc" else tf.py_function
    return tf.ensure_shape(make(lambda each: each * 2, [x], x.dtype), x.shape)


@functools.cache
def _generator() -> Any:
    with tf.init_scope():
        return tf.random.Generator.from_seed(3)


@_declare("RngReadAndSkip RngSkip", rejected=True)
def _generate(kind: str, x: Any) -> Any:
    generator = _generator()
    if kind == "RngSkip":
        tf.raw_ops.RngSkip(
            resource=generator.state.handle,
            algorithm=tf.constant(1, tf.int64),
            delta=tf.constant(1, tf.int64),
        )
        return x
    return tf.shape(generator.normal(tf.shape(x)))


# Ragged values


@_declare("RaggedTensorToTensor RaggedRange SampleNumbers UnpaddedValues", cut=[True, False])
def _pad_ranges(x: Any, cut: bool) -> Any:
    counts = tf.cast(tf.reshape(x, [tf.shape(x)[0], -1])[:, 0] > 0, tf.int32) + 1
    found = tf.ragged.range(counts)
    values = tf.cast(found.values, x.dtype)
    with tf.GradientTape() as tape:
        tape.watch(values)
        padded = found.with_values(values).to_tensor(shape=[None, 1] if cut else None) ** 2
    gradient = tape.gradient(padded, values)
    return padded, gradient, number_samples(found.row_splits), take_values(padded, found.row_splits)
