"""Programs with sizes that are computed from the batch, smaller and larger than every constant in them.

The names of a function's arguments say which arrays it gets; see `hand_written.py`.
"""

from __future__ import annotations

import tensorflow as tf

mean, total = tf.reduce_mean, tf.reduce_sum
raw = tf.raw_ops


def count(x):
    """The number of samples."""
    return tf.shape(x)[0]


def real(number, x):
    """A number in the type of `x`."""
    return tf.cast(number, x.dtype)


def gradient_of(loss_of, x):
    """A loss of `x`, and its gradient."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = loss_of(x)
    return [loss, tape.gradient(loss, x)]


SIZES = {  # sizes in arithmetic
    "maximum of k - n": lambda x: [tf.maximum(k - count(x), 0) for k in (3, 4, 6, 8)],
    "max(n - 4, 0) + 4": lambda x: total(x) / real(tf.maximum(count(x) - 4, 0) + 4, x),
    "min(n - 1, 1)": lambda x: total(x) * real(tf.minimum(count(x) - 1, 1), x),
    "n // 2": lambda x: total(x) / real(count(x) // 2 + 1, x),
    "2 * (n >> 1)": lambda x: mean(x[: 2 * tf.bitwise.right_shift(count(x), 1)]),
    "2 * (n // 2)": lambda x: mean(x[: 2 * (count(x) // 2)]),
    "n & 6": lambda x: total(x) / real(1 + tf.bitwise.bitwise_and(count(x), 6), x),
    "n | 1": lambda x: total(x) / real(tf.bitwise.bitwise_or(count(x), 1), x),
    "n ^ 3": lambda x: total(x) / real(1 + tf.bitwise.bitwise_xor(count(x), 3), x),
    "~n": lambda x: total(x) / real(tf.bitwise.invert(count(x)), x),
    "1 << n": lambda x: total(x) / real(tf.bitwise.left_shift(1, count(x)), x),
    "n % 3": lambda x: total(x) * real(count(x) % 3, x),
    "floormod, truncatemod": lambda x: [raw.FloorMod(x=count(x), y=4), raw.TruncateMod(x=count(x) - 5, y=4)],
    "relu of n - 4": lambda x: total(x) / real(tf.nn.relu(count(x) - 4) + 4, x),
    "relu6 of n": lambda x: total(x) / real(tf.nn.relu6(count(x)), x),
    "leaky relu of n - 4": lambda x: total(x) * tf.nn.leaky_relu(real(count(x) - 4, x)),
    "abs, sign and negative": lambda x: [tf.abs(4 - count(x)), tf.sign(count(x) - 4), -count(x)],
    "squared difference": lambda x: total(x) / real(1 + tf.math.squared_difference(count(x), 6), x),
    "square, cube, power": lambda x: [count(x) ** 2, count(x) ** 3, tf.pow(count(x), 4), tf.square(count(x))],
    "raw Div": lambda x: total(x) / real(1 + raw.Div(x=count(x), y=3), x),
    "truncated division": lambda x: total(x) / real(1 + tf.truncatediv(count(x), 3), x),
    "clip by value": lambda x: total(x) / real(tf.clip_by_value(count(x), 3, 6), x),
    "min and max of a vector": lambda x: [
        tf.reduce_max(tf.stack([count(x), 4])),
        tf.reduce_min(tf.stack([count(x), 4])),
        tf.reduce_max(tf.shape(x)),
        tf.reduce_min(tf.shape(x)),
    ],
    "product and sum of a vector": lambda x: [tf.reduce_prod(tf.shape(x)), total(tf.shape(x))],
    "argmax and sort of sizes": lambda x: [tf.argmax(tf.shape(x)), tf.sort(tf.shape(x))],
    "any and all of sizes": lambda x: [tf.reduce_any(tf.shape(x) > 4), tf.reduce_all(tf.shape(x) > 3)],
    "a place squeezed along one of two axes": lambda x: tf.gather(x, tf.squeeze(tf.constant([[2]]), -1)),
    "split sizes": lambda x: total(x) / real(2 * (tf.split(tf.shape(x), 2)[0][0] // 2) + 1, x),
    "unique sizes": lambda x: [*tf.unique(tf.shape(x)), tf.size(tf.unique(tf.shape(x))[0])],
    "reversed sizes": lambda x: tf.reverse(tf.shape(x), [0]),
    "cumulated sizes": lambda x: tf.cumsum(tf.shape(x)),
    "gathered sizes": lambda x: tf.gather(tf.shape(x), [1, 0, 0]),
    "tiled sizes": lambda x: tf.tile(tf.shape(x), [2]),
    "padded sizes": lambda x: tf.pad(tf.shape(x), [[1, 1]]),
    "sizes in a where": lambda x: tf.where(count(x) > 4, count(x), 4),
    "select of shapes": lambda x: tf.where([True, False], tf.shape(x), [3, 3]),
    "shape of a transpose": lambda x: tf.shape(tf.transpose(x)),
    "shape of a shape": lambda x: tf.shape(tf.shape(x)),
    "one-hot of a size": lambda x: tf.one_hot(count(x), 6),
    "size times size": lambda x: [tf.size(x) * count(x), tf.size(x) // count(x), tf.size(x) % count(x)],
    "matrix of sizes": lambda x: tf.matmul(tf.shape(x)[None], tf.shape(x)[:, None]),
    "cast to bool": lambda x: total(x) * real(tf.cast(count(x) - 1, tf.bool), x),
    "cast to bool of n - 4": lambda x: total(x) * real(tf.cast(count(x) - 4, tf.bool), x),
    "cast to uint8": lambda x: total(x) * real(tf.cast(count(x) * 100, tf.uint8), x),
    "cast to int8": lambda x: total(x) * real(tf.cast(count(x) * 40, tf.int8), x),
    "cast to float and back": lambda x: (
        total(x) * real(tf.cast(tf.cast(count(x), tf.float32) / 2, tf.int32), x)
    ),
    "floor, ceil, round": lambda x: [
        f(tf.cast(count(x), tf.float32) / 3) for f in (tf.floor, tf.math.ceil, tf.round, tf.math.rint)
    ],
    "ceil of a ratio as a size": lambda x: mean(
        x[: tf.cast(tf.math.ceil(tf.cast(count(x), tf.float32) / 2), tf.int32)]
    ),
    "square root of n": lambda x: mean(x[: tf.cast(tf.sqrt(tf.cast(count(x), tf.float32)), tf.int32)]),
    "bit cast": lambda x: tf.bitcast(count(x), tf.float32),
    "comparisons": lambda x: [
        count(x) > 4,
        count(x) >= 4,
        count(x) < 4,
        count(x) <= 4,
        tf.equal(count(x), 4),
    ],
    "not equal": lambda x: total(x) * real(tf.not_equal(count(x), 1), x),
    "logical": lambda x: [
        tf.logical_and(count(x) > 2, count(x) < 6),
        tf.logical_or(count(x) > 6, count(x) < 2),
        tf.logical_not(count(x) > 3),
    ],
    "weights of small batches": lambda x: tf.cond(count(x) < 4, lambda: total(x) * 0.5, lambda: mean(x)),
    "string of a size": lambda x: tf.strings.as_string(count(x)),
    "floor of log2": lambda x: tf.cast(tf.math.log(tf.cast(count(x), tf.float32)) / 0.6931, tf.int32),
    "number of batches": lambda x: -(-count(x) // 4),
    "population count": lambda x: raw.PopulationCount(x=count(x)),
    "bincount of n": lambda x: tf.math.bincount([count(x)], minlength=4, maxlength=6),
    "invert permutation": lambda x: tf.math.invert_permutation(tf.range(count(x))),
    "argsort of range": lambda x: tf.argsort(tf.range(count(x)), direction="DESCENDING"),
    "broadcast of shapes": lambda x: [
        tf.broadcast_dynamic_shape(tf.shape(x), [1, 4]),
        tf.broadcast_dynamic_shape(tf.shape(x)[:1], [3, 1]),
    ],
    "setdiff of ranges": lambda x: tf.sets.difference([tf.range(count(x))], [tf.range(3)]).values,
    "linspace": lambda x: tf.linspace(0.0, 1.0, count(x)),
    "linspace to n": lambda x: tf.linspace(0.0, tf.cast(count(x), tf.float32), 5),
    "meshgrid": lambda x: tf.meshgrid(tf.range(count(x)), tf.range(3)),
    "eye": lambda x: [tf.eye(count(x)), tf.eye(count(x), 3), tf.eye(3, count(x))],
    "sequence mask of n": lambda x: tf.sequence_mask([count(x), 2], 6),
    "fill": lambda x: tf.fill([count(x), 2], 3.0),
    "n as a scalar in where": lambda x: tf.where(x > 0, real(count(x), x), real(count(x) // 2, x)),
    "dynamic partition of n": lambda x: tf.dynamic_partition(tf.range(count(x)), tf.range(count(x)) % 2, 2),
    "stitch of sizes": lambda x: tf.dynamic_stitch([[0], [1]], [[count(x)], [4]]),
    "triangular number": lambda x: count(x) * (count(x) - 1) // 2,
    "all triples": lambda x: mean(
        tf.reshape(x[:, None, None, :2] * x[None, :, None, :2] * x[None, None, :, :2], [count(x) ** 3, 2]), 0
    ),
    "max pooled size": lambda x: tf.nn.max_pool1d(
        tf.cast(tf.shape(x)[None, :, None], tf.float32), 2, 1, "VALID"
    ),
    "boolean mask of sizes": lambda x: tf.boolean_mask(tf.shape(x), tf.shape(x) > 3),
    "top k of sizes": lambda x: tf.math.top_k(tf.shape(x), 1),
    "segment sum of sizes": lambda x: tf.math.segment_sum(tf.shape(x), [0, 0]),
    "scatter of a size": lambda x: tf.scatter_nd([[1]], [count(x)], [3]),
    "update of a vector of sizes": lambda x: tf.tensor_scatter_nd_update(tf.shape(x), [[1]], [7]),
    "einsum of sizes": lambda x: tf.einsum("i,i->", tf.shape(x), tf.shape(x)),
    "numpy function of n": lambda x: tf.ensure_shape(
        tf.numpy_function(lambda n: n + 1, [count(x)], tf.int32), []
    ),
    "sizes through a tensor array": lambda x: tf.TensorArray(tf.int32, 2).unstack(tf.shape(x)).read(0) // 2,
    "size through a loop": lambda x: tf.while_loop(
        lambda i, n: i < 2, lambda i, n: (i + 1, n // 2), [0, count(x)]
    )[1],
    "loop as often as samples": lambda x: tf.while_loop(
        lambda i, s: i < count(x), lambda i, s: (i + 1, s + total(x[i])), [0, tf.constant(0.0, x.dtype)]
    )[1],
    "size out of a branch": lambda x: tf.cond(count(x) > 4, lambda: count(x), lambda: 4),
    "size through a map": lambda x: tf.map_fn(lambda n: n + 1, tf.shape(x)),
    "size through a fold": lambda x: tf.foldl(lambda a, n: a * n, tf.shape(x)),
}
