"""A program of a few operations that was drawn from a seed: what is written to reproduce it, and how it runs.

All arguments of a program come from one array of samples `x (n, columns)`, so that many programs fit in one graph: integers
are cast from it, extreme integers and strings are looked up by it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from partition.declared_calls import DECLARED

WRITTEN = {"FusedBatchNormV3": 3}
"""The number of outputs, where an operation does not write the others."""
WORDS = ["", "a", "-1", "2.5", "Wort", "b c", "x,y", "abc"]
EXTREMES = {
    kind: [kind.min, kind.max, 0, 1, kind.max - 1, kind.max // 2]
    for kind in (tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.uint32, tf.int64, tf.uint64)
}
FLOATS = "float64", "float32", "float16", "bfloat16", "complex64"
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0)


class _Short:
    """Written without the fields at the end that have their defaults."""

    def __repr__(self) -> str:
        fields: Any = dataclasses.fields(self)
        values = [getattr(self, field.name) for field in fields]
        while values and values[-1] == fields[len(values) - 1].default:
            values.pop()
        return f"{type(self).__name__}({', '.join(map(repr, values))})"


@dataclasses.dataclass(frozen=True, repr=False)
class Argument(_Short):
    """A tensor that an operation gets.

    Attributes:
        source: "batch"; "sum", "mean" or "max" of the batch; "constant"; "sizes", computed from the number of samples;
            "step 0": the first tensor of an earlier step.
        shape: with "n" where the samples are, "2n" for two views one after the other, "n2" for pairs. Of sizes: Python
            expressions of n, one for each element, or one alone for a scalar.
        values: as `_numbers` makes them; of sizes, the extents of their tensor if it is no vector.
        number: which random numbers.
    """

    source: str = "batch"
    shape: tuple[Any, ...] | str = ("n", 3)
    dtype: str = "float64"
    values: str = "normal"
    number: int = 0


@dataclasses.dataclass(frozen=True, repr=False)
class Step(_Short):
    """One operation: a name of `tf.raw_ops`, or after "keras." or "declared." one of `keras.ops` or `declared_calls.py`.

    `arguments` are its tensors, or tuples of them, by name.
    """

    operation: str
    arguments: tuple[tuple[str, Any], ...]
    attributes: tuple[tuple[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, repr=False)
class Case(_Short):
    """A program: steps, what is made of the last result, whether gradients are returned, and one of `CONTEXTS`."""

    steps: tuple[Step, ...]
    endings: tuple[str, ...] = ()
    gradient: str = ""
    context: str = ""

    def arguments(self) -> Iterator[Argument]:
        """All arguments, in order."""
        for step in self.steps:
            for _, given in step.arguments:
                yield from given if isinstance(given, tuple) else (given,)

    @functools.cached_property
    def columns(self) -> int:
        """The number of columns of the array of samples."""
        return sum(map(columns_of, self.arguments()))

    @property
    def narrowest(self) -> int:
        """The bytes of the narrowest number that is summed over samples: its rounding is in all results.

        In a context the gradients with respect to the array of samples have that of every number.
        """
        declared = any(
            step.operation.startswith("declared.") for step in self.steps
        )  # they sum samples inside
        alone = not (self.context or declared)
        names = [e.dtype for e in self.arguments() if not alone or e.source in ("sum", "mean")]
        if self.context:
            made = [value for step in self.steps for _, value in step.attributes]
            names += [value for value in made if isinstance(value, str) and value in FLOATS]
        types = [tf.as_dtype(name).real_dtype for name in names]
        return min((kind.size for kind in types if kind.is_floating), default=8)

    def samples(self, size: int) -> np.ndarray:
        """The array of samples."""
        found = [_numbers(each, size) for each in self.arguments() if columns_of(each)]
        return np.concatenate([np.ones((size, 0)), *found], 1)

    def __call__(self, x: Any) -> list[Any]:
        """The results for an array of samples."""
        if not self.context:
            return self._run(x)
        inner = dataclasses.replace(self, gradient="", context="")
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = CONTEXTS[self.context](inner._run, x)
            real = [each for each in found if each.dtype.is_floating or each.dtype.is_complex]
            loss = sum((_loss(each, self.gradient) for each in real), tf.constant(0.0, tf.float64))
        given = tape.gradient(loss, x) if self.gradient and real else None
        return found if given is None else [*found, given]

    def _run(self, x: Any) -> list[Any]:
        """The results where the program stands."""
        made: list[list[Any]] = []
        with tf.GradientTape() as tape:
            first, watched = 0, []

            def tensor(argument: Argument) -> Any:
                nonlocal first
                last = first + columns_of(argument)
                with tf.name_scope("given"):
                    found = _tensor(argument, x[:, first:last], tf.shape(x)[0], made)
                first = last
                if self.gradient and argument.source in ("batch", "sum", "mean") and found.dtype.is_floating:
                    tape.watch(found)
                    watched.append(found)
                return found

            for step in self.steps:
                made.append(_called(step, tensor))
            last = made[-1]
            ends = [end for name in self.endings for end in _ended(name, last[0], tf.shape(x)[0])]
            real = [each for each in last if each.dtype.is_floating or each.dtype.is_complex]
            loss = sum((_loss(each, self.gradient) for each in real), tf.constant(0.0, tf.float64))
        given = tape.gradient(loss, watched) if self.gradient and real else []
        given = [tf.convert_to_tensor(each) for each in given if each is not None]
        return [*itertools.chain(*made), *ends, *given]


def _is_known(x: Any) -> Any:
    """True, but only for those who look at the samples."""
    return tf.reduce_sum(tf.cast(tf.math.is_finite(x), tf.int32)) >= 0


def _zeros(found: Sequence[Any]) -> list[Any]:
    return [tf.zeros_like(each) for each in found]


def _in_branch(run: Any, x: Any) -> list[Any]:
    return tf.cond(_is_known(x), lambda: run(x), lambda: _zeros(run(x)))


def _in_other_branch(run: Any, x: Any) -> list[Any]:
    """The second branch, where the first one is of other values."""
    return tf.cond(~_is_known(x), lambda: run(x[:, ::-1]), lambda: run(x))


def _in_gathered_branch(run: Any, x: Any) -> list[Any]:
    mixed = lambda: [*run(x), tf.cumsum(x, 0)]  # noqa: E731
    return tf.cond(_is_known(x), mixed, lambda: [*_zeros(run(x)), x])[:-1]


def _in_loop(run: Any, x: Any, more: Any = lambda x: x) -> list[Any]:
    start = _zeros(run(x))
    shapes = [
        tf.TensorShape([]),
        tf.TensorShape([None, *x.shape[1:]]),
        *(tf.TensorShape(None if each.shape.rank is None else [None] * each.shape.rank) for each in start),
    ]
    turns = tf.minimum(tf.shape(x)[0], 2)
    return tf.while_loop(
        lambda turn, *_: turn < turns,
        lambda turn, given, *_: [turn + 1, more(given), *run(given)],
        [0, x, *start],
        shapes,
    )[2:]


def _in_gathered_loop(run: Any, x: Any) -> list[Any]:
    return _in_loop(run, x, lambda given: tf.reverse(tf.reverse(given, [0]), [0]))


def _in_function(run: Any, x: Any) -> list[Any]:
    return run(x) if tf.executing_eagerly() else tf.function(run, autograph=False)(x)


CONTEXTS: dict[str, Any] = {
    "branch": _in_branch,
    "other branch": _in_other_branch,
    "gathered branch": _in_gathered_branch,
    "loop": _in_loop,
    "gathered loop": _in_gathered_loop,
    "function": _in_function,
}
"""Where a program stands: functions of the program and the samples."""


def columns_of(argument: Argument) -> int:
    """The columns of the array of samples that an argument needs."""
    if argument.source in ("constant", "sizes") or argument.source.startswith("step"):
        return 0
    each = math.prod(2 if extent in ("2n", "n2") else extent for extent in argument.shape if extent != "n")
    return 2 * each if argument.shape.count("n") == 2 else each


def _numbers(argument: Argument, size: int) -> np.ndarray:
    """The numbers of an argument: `(size, columns)`, float64."""
    random = np.random.default_rng([argument.number, size])
    shape = (size, columns_of(argument) or math.prod(e for e in argument.shape if e != "n"))
    kind, *more = argument.values.split()
    if kind == "normal":
        found = random.normal(size=shape)
    elif kind == "unit":
        found = random.random(shape) * 0.8 + 0.1
    elif kind == "special":
        found = np.where(random.random(shape) < 0.3, random.choice(SPECIAL, shape), random.normal(size=shape))
    elif kind == "zeros":
        found = np.zeros(shape)
    else:  # integers, sorted integers, or positions in a table
        found = random.integers(*map(int, more), shape).astype("float64")
        found = np.sort(found, 0) if kind == "sorted" else found
    return found


def _typed(numbers: Any, argument: Argument) -> Any:
    dtype = tf.as_dtype(argument.dtype)
    if argument.values.startswith("extreme"):
        table = EXTREMES[dtype]
        return tf.gather(tf.constant(table, dtype), tf.cast(numbers, tf.int32))
    if dtype == tf.string:
        return tf.gather(WORDS, tf.cast(numbers, tf.int32) % len(WORDS))
    if dtype == tf.bool:
        return numbers > 0
    if dtype.is_complex:
        real = tf.cast(numbers, dtype.real_dtype)
        return tf.complex(real, real * 0.5)
    return tf.cast(numbers, dtype)


def _tensor(argument: Argument, x: Any, n: Any, made: list[list[Any]]) -> Any:
    shape = argument.shape
    if argument.source.startswith("step"):
        return made[int(argument.source.split()[1])][0]
    if argument.source == "sizes":
        found = _sizes(shape, tf.as_dtype(argument.dtype), n)
        if argument.values == "list":
            return found.tolist() if isinstance(found, np.ndarray) else tf.unstack(found)
        if argument.values:
            reshape = np.reshape if isinstance(found, np.ndarray) else tf.reshape
            found = reshape(found, [*map(int, argument.values.split())])
        return tf.convert_to_tensor(found)
    if argument.source == "constant":
        values = _numbers(dataclasses.replace(argument, shape=("n", *shape)), 1)
        with tf.init_scope():  # a constant of the graph, not an operation on constants
            found = _typed(tf.constant(values.reshape(shape)), argument).numpy()
        return tf.constant(found, argument.dtype)
    if argument.source in ("sum", "mean", "max"):
        found = _typed(tf.reshape(x, [-1, *shape]), argument)
        return {"sum": tf.reduce_sum, "mean": tf.reduce_mean, "max": tf.reduce_max}[argument.source](found, 0)
    axes = [n for n, extent in enumerate(shape) if extent in ("n", "2n", "n2")]
    rest = [extent for extent in shape if extent not in ("n", "2n", "n2")]
    if len(axes) == 2:  # a matrix of all pairs of samples, in the end at these axes
        left, right = tf.split(x, 2, 1)
        pairs = tf.minimum(tf.reshape(left, [-1, 1, *rest]), tf.reshape(right, [1, -1, *rest]))
        return _moved(_typed(pairs, argument), axes)
    if shape[axes[0]] == "2n":
        left, right = tf.split(x, 2, 1)
        x = tf.concat([tf.reshape(left, [-1, *rest]), tf.reshape(right, [-1, *rest])], 0)
    return _moved(_typed(tf.reshape(x, [-1, *rest]), argument), axes)


def _moved(tensor: Any, axes: Sequence[int]) -> Any:
    """The first axes of a tensor at other places."""
    rest = iter(range(len(axes), tensor.shape.rank))
    order = [axes.index(n) if n in axes else next(rest) for n in range(tensor.shape.rank)]
    return tensor if order == sorted(order) else tf.transpose(tensor, order)


def _sizes(expressions: Any, dtype: tf.DType, n: Any) -> Any:
    """A tensor, or an array where nothing depends on the number of samples."""
    names = {"n": n, "max": tf.maximum, "min": tf.minimum}
    found = [
        eval(str(each), names) for each in ([expressions] if isinstance(expressions, str) else expressions)
    ]
    if not any(map(tf.is_tensor, found)):
        constant = np.asarray(found, dtype.as_numpy_dtype)
        return constant[0] if isinstance(expressions, str) else constant
    return tf.cast(found[0] if isinstance(expressions, str) else tf.stack(found), dtype)


def _called(step: Step, tensor: Any) -> list[Any]:
    given = {
        name: [tensor(one) for one in each] if isinstance(each, tuple) else tensor(each)
        for name, each in step.arguments
    }
    values = dict(step.attributes)
    if step.operation.startswith("declared."):
        found = DECLARED[step.operation.removeprefix("declared.")].fn(**given, **values)
    elif not step.operation.startswith("keras."):
        lists = {name: list(each) if isinstance(each, tuple) else each for name, each in values.items()}
        if step.operation == "Cast":
            given["x"] = _in_range(given["x"], tf.as_dtype(values["DstT"]))
        found = getattr(tf.raw_ops, step.operation)(**given, **lists)
    else:
        # `einsum` and `meshgrid` take tensors by position.
        positions = [each for name in given if name[0] == "*" for each in given[name]]
        named = {name: each for name, each in given.items() if name[0] != "*"}
        first = [values.pop("subscripts")] if "subscripts" in values else []
        found = getattr(keras.ops, step.operation.removeprefix("keras."))(
            *first, *positions, **named, **values
        )
    written = tf.nest.flatten(found)[: WRITTEN.get(step.operation)]
    return [tf.convert_to_tensor(each) for each in written if each is not None]


def _in_range(x: Any, dtype: tf.DType) -> Any:
    """Numbers that an integer type has: what the others become depends on the processor's instructions."""
    if not (dtype.is_integer and (x.dtype.is_floating or x.dtype.is_complex)):
        return x
    real = tf.abs(x)
    return tf.where(real < 100, real, tf.zeros_like(real))


def _loss(result: Any, kind: str) -> Any:
    if result.dtype.is_complex:
        result = tf.math.real(result) + 2 * tf.math.imag(result)
    result = tf.cast(result, tf.float64)
    return tf.reduce_sum(result * result) if kind == "square" else tf.reduce_sum(result)


def _ended(name: str, result: Any, n: Any) -> list[Any]:
    """More computations with a result: with its values, or with its extents."""
    kind, *more = name.split()
    axis = int(more[0]) if more else None
    if kind == "sum":
        return [tf.reduce_sum(result, axis)]
    if kind == "mean":
        return [tf.reduce_mean(result, axis)]
    if kind == "shape":
        return [tf.shape(result), tf.size(result)]
    extent = tf.shape(result)[axis]
    if kind == "range":
        return [tf.range(extent), tf.reduce_sum(tf.range(extent))]
    if kind == "fill":
        return [tf.fill([extent, 2], 1.5)]
    if kind == "tile":
        return [tf.tile(tf.constant([[1, 2]]), [extent, 1])]
    if kind == "flat":
        return [tf.reshape(result, [extent, -1]), tf.reshape(result, [-1])]
    if kind == "half":
        return [tf.gather(result, tf.range(extent // 2), axis=axis)]
    if kind == "share":
        return [tf.cast(n, tf.float64) / tf.cast(tf.maximum(extent, 1), tf.float64)]
    if kind == "branch":
        return [tf.cond(extent > 3, lambda: tf.reduce_sum(result, axis), lambda: tf.reduce_max(result, axis))]
    raise ValueError(f"there is no ending {name!r}")


ENDINGS = (
    *("sum", "sum 0", "sum -1", "mean 0", "shape", "range 0", "range -1", "fill 0", "tile 0", "flat 0"),
    *("half 0", "half -1", "share 0", "share -1", "branch 0"),
)
