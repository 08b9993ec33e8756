"""Random numbers under XLA that equal those of the plain graph, so that the backend does not change results."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from ...distribute.step_context import current_step

# The bits of a number's fraction, which are drawn; float64 takes them from two words.
_FRACTION_BITS = {tf.float16: 10, tf.bfloat16: 7, tf.float32: 23, tf.float64: 52}
_LEAST = 1e-7  # lower limit of the argument of Box and Muller's logarithm


def spelled_out(dtype: Any) -> bool:
    """Whether this module must draw the numbers of `dtype` here: in a step under XLA."""
    step = current_step()
    return step is not None and step.in_xla and tf.as_dtype(dtype) in _FRACTION_BITS


def uniform(shape: Any, seed: Any, dtype: Any) -> tf.Tensor:
    """Numbers in [0, 1), the bits of `tf.random.stateless_uniform` on this device.

    Both make the same random bits (Philox) from a seed. TensorFlow's kernels take the low bits of each word for a
    uniform number and pairs of these for two normal ones (Box and Muller); XLA takes the high bits, and inverts the
    error function.

    Source: `Uint32ToFloat` and `BoxMullerFloat` in TensorFlow's `random_distributions.h` and
    `random_distributions_utils.h`.

    `seed` is int32 `[2]`; the dtype is float16, bfloat16, float32 or float64.
    """
    dtype = tf.as_dtype(dtype)
    count = _count(shape)
    words = 2 * count if dtype == tf.float64 else count
    return tf.reshape(_fractions(_bits(words, seed), dtype), shape)


def normal(shape: Any, seed: Any, dtype: Any) -> tf.Tensor:
    """Numbers with mean 0 and deviation 1, as from `tf.random.stateless_normal` up to rounding. Arguments as `uniform`."""
    dtype = tf.as_dtype(dtype)
    count = _count(shape)
    pairs = (count + 1) // 2
    wide = tf.float64 if dtype == tf.float64 else tf.float32
    drawn = _fractions(_bits((4 if wide == tf.float64 else 2) * pairs, seed), wide)
    radius = tf.sqrt(-2.0 * tf.math.log(tf.maximum(drawn[0::2], tf.constant(_LEAST, wide))))
    angle = tf.constant(2 * math.pi, wide) * drawn[1::2]
    both = tf.reshape(tf.stack([tf.sin(angle) * radius, tf.cos(angle) * radius], axis=1), [-1])
    return tf.reshape(tf.cast(both[:count], dtype), shape)


def dropout(inputs: tf.Tensor, rate: float, noise_shape: Any, seed: Any) -> tf.Tensor:
    """`tf.nn.experimental.stateless_dropout` with the mask of the plain graph."""
    sampler = lambda shape, dtype: uniform(shape, seed, dtype)  # noqa: E731
    return tf.nn.experimental.general_dropout(inputs, rate, sampler, noise_shape)


def _count(shape: Any) -> Any:
    static = tf.get_static_value(tf.convert_to_tensor(shape, tf.int32))
    return tf.reduce_prod(shape) if static is None else math.prod(int(size) for size in static)


def _bits(words: Any, seed: Any) -> tf.Tensor:
    return tf.random.stateless_uniform([words], seed, None, None, tf.uint32, alg="philox")  # pyright: ignore


def _fractions(words: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The numbers k / 2**bits of the low bits k of each word; of each two words for float64."""
    bits = _FRACTION_BITS[dtype]
    if dtype == tf.float64:
        high = tf.cast(words[0::2] & tf.constant(0xFFFFF, tf.uint32), tf.float64)
        return (high * 2.0**32 + tf.cast(words[1::2], tf.float64)) * 2.0**-52
    low = tf.cast(words & tf.constant(2**bits - 1, tf.uint32), tf.int32)
    return tf.cast(tf.cast(low, tf.float32) * 2.0**-bits, dtype)
