"""Programs whose numbers are infinite, not numbers, zero, or wrap around, in some samples or in all of them.

The names of a function's arguments say which arrays it gets; see `hand_written.py`.
"""

from __future__ import annotations

import tensorflow as tf
from partition.size_programs import count, gradient_of, mean, raw, real, total

INF, NAN = float("inf"), float("nan")
DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "uint64")


def _labels_of_one_sample(x):
    labels = real([[0.1, 0.2, 0.3, 0.4]], x)
    entropy = tf.raw_ops.SoftmaxCrossEntropyWithLogits
    return gradient_of(
        lambda z: tf.add_n([*map(total, entropy(features=z, labels=labels))]), tf.reshape(x, [-1, 4])
    )


def _nt_xent(x):
    z = tf.math.l2_normalize(tf.concat([x, tf.sin(x)], 0), 1)
    n2 = tf.shape(z)[0]
    logits = tf.matmul(z, z, transpose_b=True)
    logits = tf.where(tf.eye(n2, dtype=tf.bool), real(-INF, z), logits)
    labels = tf.concat([tf.range(n2 // 2) + n2 // 2, tf.range(n2 // 2)], 0)
    return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def _masked_logits(x, m, dense):
    n = count(x)
    logits = tf.matmul(x, x, transpose_b=True)
    keep = tf.logical_or(m[None, :] & m[:, None], tf.eye(n, dtype=tf.bool))
    logits = tf.where(keep, logits, real(-INF, x))
    if dense:
        return mean(tf.nn.softmax_cross_entropy_with_logits(tf.eye(n, dtype=x.dtype), logits))
    return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(n), logits))


def _clip(x, m):
    n = count(x)
    logits = tf.where(m[None, :] | tf.eye(n, dtype=tf.bool), tf.matmul(x, x, transpose_b=True), real(-INF, x))
    labels = tf.range(n)
    one = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    other = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.transpose(logits))
    return mean(one + other) / 2


NUMBERS = {
    # quotients of sums
    "0/0 where no sample is chosen": lambda x, none: total(tf.where(none, x, 0.0)) / total(real(none, x)),
    "gradient of 0/0": lambda x, none: gradient_of(
        lambda z: total(tf.where(none, z, 0.0)) / total(real(none, z)), x
    ),
    "x/0": lambda x: total(x) / total(tf.zeros_like(x)),
    "gradient of x/0": lambda x: gradient_of(lambda z: total(z**2) / total(tf.zeros_like(z)), x),
    "x/0 of some columns": lambda x, zero: total(x, 0) / total(zero, 0),
    "sums with masks": lambda x, m: total(tf.where(m[:, None], x, 0.0)) / total(real(m, x)),
    "gradient of sums with masks": lambda x, m: gradient_of(
        lambda z: total(tf.where(m[:, None], z, 0.0)) / total(real(m, z)), x
    ),
    "mean of none": lambda x, none: mean(tf.boolean_mask(x, none[:, 0])),
    "mean of chosen": lambda x, m: mean(tf.boolean_mask(x, m)),
    "maximum of none": lambda x, none: tf.reduce_max(tf.boolean_mask(x, none[:, 0])),
    "no NaN where none": lambda x, none: tf.math.divide_no_nan(
        total(real(none, x) * x), total(real(none, x))
    ),
    "sum over zero weights": lambda x, zero: total(x * zero, 0) / total(zero, 0),
    "sum over sums of columns": lambda x, zero: total(total(x, 0) / total(zero, 0)),
    "quotient of samples": lambda x, zero: mean(x / zero),
    "sum times the inverse of 0": lambda x, zero: total(x) * (1 / total(zero)),
    "xdivy": lambda x, zero: [tf.math.xdivy(total(x), total(zero)), tf.math.xdivy(total(zero), total(zero))],
    # partial sums times infinity
    "sum times inf": lambda x: total(x) * INF,
    "sum with a zero part times inf": lambda zero: [total(zero) * INF, (total(zero) + 1) * INF],
    "sum of positive numbers times inf": lambda x: total(x**2) * INF,
    "inverse of a sum times 0": lambda x: 1 / (total(x, 0) * 0.0),
    "sum times nan": lambda x: total(x) * NAN,
    "sum over inf": lambda x: total(x) / INF,
    "sum over 0": lambda x: [total(x) / 0.0, total(x**2, 0) / 0.0],
    "sum plus inf": lambda x: [total(x) + INF, total(x) - INF, INF - total(x)],
    "sum plus nan": lambda x: total(x) + NAN,
    "sum times 0": lambda w: total(w) * 0.0,
    "sum with inf": lambda w: [total(w), mean(w), total(w, 0), mean(w, 0)],
    "mean times inf": lambda x: [mean(x) * INF, mean(x**2, 0) * INF],
    "sum times a vector with inf": lambda x: total(x**2, 0) * [1.0, INF, -INF, 0.0],
    "sum of some columns times inf": lambda x, zero: total(tf.concat([x**2, zero], 1), 0) * INF,
    "matrix product with inf": lambda x: tf.matmul(total(x, 0, keepdims=True), tf.fill([4, 2], real(INF, x))),
    "matrix product of samples with inf": lambda w: [
        tf.matmul(w, w, transpose_a=True),
        tf.matmul(w, w, transpose_b=True),
    ],
    "gradient through inf": lambda x: gradient_of(lambda z: total(z) * INF, x),
    "gradient of a where with nan": lambda x: gradient_of(
        lambda z: total(tf.where(z > 0, tf.sqrt(z), 0.0)), x
    ),
    "multiply no nan": lambda x, zero: [
        tf.math.multiply_no_nan(total(x) * INF, total(zero)),
        tf.math.multiply_no_nan(total(tf.where(x > 1, real(INF, x), x)), 0.0),
    ],
    "sum cast to integers": lambda x: tf.cast(total(x), tf.int32),
    "sum cast to integers of its size": lambda x: [
        tf.cast(total(9 * x), tf.int64),
        tf.cast(mean(tf.cast(9 * x, tf.float32), 0), tf.int32),
    ],
    "negative of the least integer": lambda k, m, y: [
        -tf.reduce_max(tf.boolean_mask(k, m)),
        -tf.reduce_min(tf.cast(k, tf.int8)),
        -tf.math.unsorted_segment_max(k, y, 4),
    ],
    "sum cast to a smaller float": lambda x: tf.cast(tf.cast(total(1e5 * x**2), tf.float32), tf.float16),
    "sum cast to bool": lambda zero: tf.cast(total(zero), tf.bool),
    "sign of a sum": lambda x: [
        tf.sign(total(x)),
        tf.abs(total(x)),
        tf.nn.relu(total(x)),
        tf.floor(total(x)),
    ],
    "sum selected": lambda x: [tf.where(total(x) > 0, total(x), INF), tf.where([True, False], total(x), NAN)],
    "sum clipped": lambda x: [tf.clip_by_value(total(x), -1.0, 1.0), tf.clip_by_norm(total(x, 0), 1.0)],
    "sum pads with inf": lambda x: tf.pad(total(x, 0), [[1, 1]], constant_values=INF),
    "sum divided by a sum with inf": lambda x, w: total(x) / total(w),
    "scalar product with inf": lambda x: tf.tensordot(
        total(x, 0), tf.constant([1.0, 0.0, INF, 1.0], x.dtype), 1
    ),
    "convolution of a sum with inf": lambda x: tf.nn.conv1d(
        total(x, 0)[None, :, None], tf.fill([2, 1, 1], real(INF, x)), 1, "SAME"
    ),
    # masks with -inf
    "NT-Xent with -inf": _nt_xent,
    "gradient of NT-Xent with -inf": lambda x: gradient_of(_nt_xent, x),
    "CLIP with -inf": _clip,
    "gradient of CLIP with -inf": lambda x, m: gradient_of(lambda z: _clip(z, m), x),
    "cross-entropy with -inf": lambda x, m: _masked_logits(x, m, False),
    "dense cross-entropy with -inf": lambda x, m: _masked_logits(x, m, True),
    "gradient of dense cross-entropy with -inf": lambda x, m: gradient_of(
        lambda z: _masked_logits(z, m, True), x
    ),
    "cross-entropy with 0 * -inf": lambda x, m: (
        -total(real(m, x)[:, None] * tf.math.log(tf.where(m[:, None], tf.exp(x), 0.0)), 0)
    ),
    "log-sum-exp over samples": lambda x, m: [
        tf.reduce_logsumexp(tf.where(m[:, None], x, real(-INF, x)), 0),
        tf.reduce_logsumexp(tf.where(m[:, None], x, real(-INF, x))),
    ],
    "log-sum-exp of -inf": lambda x: tf.reduce_logsumexp(x * 0 - INF, 0),
    "softmax over samples with -inf": lambda x, m: tf.nn.softmax(tf.where(m[:, None], x, real(-INF, x)), 0),
    "attention with -inf": lambda x, m: tf.matmul(
        tf.nn.softmax(tf.where(m[None], tf.matmul(x, x, transpose_b=True), real(-INF, x))), x
    ),
    "log-softmax with -inf": lambda x, m: tf.nn.log_softmax(
        tf.where(m[None], tf.matmul(x, x, transpose_b=True), real(-INF, x))
    ),
    "maximum of -inf": lambda x, m: [
        tf.reduce_max(tf.where(m[:, None], x, real(-INF, x)), 0),
        tf.reduce_min(tf.where(m[:, None], x, real(INF, x)), 0),
    ],
    "-inf times 0": lambda x, m: total(tf.where(m[:, None], x, real(-INF, x)) * real(m, x)[:, None]),
    # special numbers in the samples
    "minimum and maximum with nan": lambda w: [tf.reduce_max(w, 0), tf.reduce_min(w, 0), tf.reduce_max(w)],
    "product with 0 and inf": lambda w: [tf.reduce_prod(w, 0), tf.reduce_prod(w)],
    "any and all of special numbers": lambda w: [
        tf.reduce_any(tf.math.is_nan(w), 0),
        tf.reduce_all(tf.math.is_finite(w), 0),
    ],
    "variance with inf": lambda w: [tf.math.reduce_variance(w, 0), tf.math.reduce_std(w)],
    "variance of equal numbers": lambda x: tf.math.reduce_variance(tf.ones_like(x) * 0.1, 0),
    "weights that are nan": lambda w, x: total(tf.where(tf.math.is_finite(w), x, 0.0)),
    "norm of zeros": lambda zero: gradient_of(lambda z: tf.norm(z), zero),
    "cosine of zeros": lambda zero, x: total(tf.math.l2_normalize(zero, 0) * x),
    "sorting of special numbers": lambda w: [tf.sort(tf.where(tf.math.is_nan(w), real(0.0, w), w), axis=0)],
    "argmax with nan": lambda w: [tf.argmax(w, 0), tf.argmin(w, 0), tf.argmax(w, 1)],
    "argmax of equal numbers": lambda zero: [tf.argmax(zero, 0), tf.argmin(zero, 0)],
    "top k of equal numbers": lambda zero: tf.math.top_k(tf.transpose(zero), 1),
    "cumulated special numbers": lambda w: [tf.cumsum(w, 0), tf.math.cumprod(w, 0)],
    "segments with special numbers": lambda w, y: [
        tf.math.unsorted_segment_sum(w, y, 3),
        tf.math.unsorted_segment_max(w, y, 4),
        tf.math.unsorted_segment_min(w, y, 4),
        tf.math.unsorted_segment_prod(w, y, 4),
    ],
    "segments that no sample has": lambda x, y: tf.math.unsorted_segment_mean(x, y, 6),
    "sqrt n of segments": lambda x, y: tf.math.unsorted_segment_sqrt_n(x, y, 6),
    "negative segments": lambda x, y: tf.math.unsorted_segment_sum(x, y - 1, 3),
    "finite check": lambda w: tf.reduce_all(tf.math.is_finite(total(w, 0))),
    "difference of sums with inf": lambda w: total(w) - total(w),
    "minimum plus sum": lambda x: tf.minimum(total(x), tf.reduce_max(x)),
    "power of a sum": lambda x: [total(x) ** 2, tf.pow(total(x), 3), tf.sqrt(total(x)), tf.exp(total(x))],
    "log of a sum": lambda x, zero: [
        tf.math.log(total(x**2)),
        tf.math.log(total(zero)),
        tf.math.log1p(total(zero)),
    ],
    "accumulated n": lambda x, y: tf.math.accumulate_n([total(x), total(real(y, x)), real(1.0, x)]),
    "sum of a single precision": lambda x: total(tf.cast(x, tf.float32)) * 1e38 * 1e38 * 0.0,
    "largest number times a sum": lambda x: total(x**2) * 1e308,
    "smallest number times a sum": lambda x: total(x) * 5e-324,
    # integers that wrap
    **{
        f"{kind}: sum, then cast": lambda k, kind=kind: [
            tf.cast(total(tf.cast(k, kind)), tf.float64),
            tf.cast(total(tf.cast(k, kind), 0), tf.int64),
        ]
        for kind in DTYPES
    },
    **{
        f"{kind}: sum, then arithmetic": lambda k, kind=kind: [
            total(tf.cast(k, kind)) * tf.cast(3, kind),
            total(tf.cast(k, kind)) // tf.cast(3, kind),
            total(tf.cast(k, kind)) - tf.cast(1, kind),
        ]
        for kind in DTYPES
    },
    **{
        f"{kind}: extremes": lambda k, kind=kind: [
            tf.reduce_max(tf.cast(k, kind), 0),
            tf.reduce_min(tf.cast(k, kind)),
            tf.reduce_prod(tf.cast(k, kind), 0),
            tf.cumsum(tf.cast(k, kind), 0),
        ]
        for kind in DTYPES
    },
    **{
        f"{kind}: mean": lambda k, kind=kind: [mean(tf.cast(k, kind), 0), mean(tf.cast(k, kind))]
        for kind in DTYPES
    },
    "uint32: number minus a sum": lambda x: tf.cast(
        tf.constant(4_000_000_000, tf.uint32) - total(tf.cast(x[:, 0] > 0, tf.uint32)), tf.float64
    ),
    "int64: sum of casts of nan": lambda x: tf.cast(
        total(tf.cast(tf.tanh(NAN * x[:, 0]), tf.int64)), tf.float64
    ),
    "uint8: sum of comparisons": lambda x: tf.cast(
        total(tf.cast(tf.repeat(x, 50, 1) > -1, tf.uint8)), x.dtype
    ),
    "int8: count, then a mean": lambda x: (
        total(x) / real(total(tf.cast(tf.repeat(x, 50, 1) > -1, tf.int8)), x)
    ),
    "int32: sum to a wider type": lambda k: tf.cast(total(tf.cast(k, tf.int32)), tf.int64),
    "int32: sum to a narrower type": lambda k: tf.cast(total(tf.cast(k, tf.int32)), tf.int8),
    "int64: sum to float32": lambda k: tf.cast(total(k), tf.float32),
    "bool to uint8 to float": lambda m: tf.cast(total(tf.cast(tf.repeat(m, 300), tf.uint8)), tf.float32),
    "int32: product of matrices": lambda k: tf.cast(
        tf.matmul(tf.cast(k, tf.int32), tf.cast(k, tf.int32), transpose_a=True), tf.int64
    ),
    "int32: segments, then cast": lambda k, y: tf.cast(
        tf.math.unsorted_segment_sum(tf.cast(k, tf.int32), y, 3), tf.int64
    ),
    "uint8: segments, then cast": lambda k, y: tf.cast(
        tf.math.unsorted_segment_sum(tf.cast(k, tf.uint8), y, 3), tf.int64
    ),
    "int32: bincount": lambda y, k: tf.math.bincount(y, weights=tf.cast(k[:, 0], tf.int32), minlength=3),
    "uint8: shifts of a sum": lambda k: tf.bitwise.right_shift(
        total(tf.cast(k, tf.uint8)), tf.constant(1, tf.uint8)
    ),
    "int32: bits of a sum": lambda k: [
        f(total(tf.cast(k, tf.int32)), 12345)
        for f in (tf.bitwise.bitwise_and, tf.bitwise.bitwise_or, tf.bitwise.bitwise_xor)
    ],
    "int32: abs of a sum": lambda k: [
        tf.abs(total(tf.cast(k, tf.int32))),
        tf.sign(total(tf.cast(k, tf.int32))),
    ],
    "uint8: max with wrap": lambda k: tf.reduce_max(tf.cast(k, tf.uint8) + tf.constant(200, tf.uint8)),
    "int8: saturating cast of a sum": lambda k: tf.saturate_cast(total(tf.cast(k, tf.int16)), tf.int8),
    # out of range, other shapes
    "one-hot out of range": lambda y: [tf.one_hot(y + 1, 3), tf.one_hot(y - 1, 3)],
    "gather of clipped labels": lambda x, y: tf.gather(x, tf.minimum(y, count(x) - 1)),
    "equal of other shapes": lambda x, y: raw.Equal(
        x=x, y=tf.cast(tf.ones([7, 3]), x.dtype), incompatible_shape_error=False
    ),
    "equal of sums and others": lambda x: raw.Equal(
        x=total(x, 0), y=tf.ones([3], x.dtype), incompatible_shape_error=False
    ),
    "not equal of other shapes": lambda x: raw.NotEqual(
        x=x[:, :2], y=x[:, :3], incompatible_shape_error=False
    ),
    "cross-entropy with labels of one sample": _labels_of_one_sample,
    # complex numbers
    "complex sums": lambda c: [total(c), mean(c, 0), total(c) * 1j, tf.math.conj(total(c))],
    "parts of complex sums": lambda c: [tf.math.real(total(c)), tf.math.imag(mean(c)), tf.abs(total(c))],
    "complex sum times inf": lambda c: (
        total(c) * tf.complex(real(INF, tf.math.real(c)), real(0.0, tf.math.real(c)))
    ),
    "sum made complex": lambda x: tf.complex(total(x), mean(x)),
    "complex products": lambda c: [tf.matmul(c, c, adjoint_a=True), tf.matmul(c, c, adjoint_b=True)],
    "angle": lambda c: [tf.math.angle(c), tf.math.angle(total(c))],
    "gradient of complex numbers": lambda c: gradient_of(lambda z: tf.abs(total(z * z)), c),
    "complex cast to real": lambda c: tf.cast(total(c), tf.float64),
    # strings
    "strings": lambda t: [tf.strings.length(t), tf.strings.join([t, "!"]), tf.strings.upper(t)],
    "joined strings": lambda t: [tf.strings.reduce_join(t), tf.strings.reduce_join(t, 0, separator=",")],
    "strings to numbers": lambda t: total(tf.strings.to_number(tf.strings.substr(t, 1, 1))),
    "split strings": lambda t: tf.strings.split(t, "-").to_tensor(),
    "hash of strings": lambda t: tf.strings.to_hash_bucket_fast(t, 7),
    "unique strings": lambda t: tf.unique(t),
    "strings of numbers": lambda x: tf.strings.as_string(tf.round(total(x))),
    "strings of samples": lambda y: tf.strings.as_string(y),
    "formatted": lambda y: tf.strings.format("{}", [total(y)]),
    "regular expressions": lambda t: [
        tf.strings.regex_replace(t, "w", "v"),
        tf.strings.regex_full_match(t, "w.*"),
    ],
    "sorted strings": lambda t: tf.equal(t, tf.reverse(t, [0])),
}
