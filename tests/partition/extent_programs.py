"""Programs whose tensors have extents that are computed from the batch, and arrays with other numbers of samples.

The names of a function's arguments say which arrays it gets; see `hand_written.py`.
"""

from __future__ import annotations

import tensorflow as tf
from partition.size_programs import count, gradient_of, mean, raw, real, total


def _padded_to(k):
    return lambda x: mean(tf.pad(x, [[0, tf.maximum(k - count(x), 0)], [0, 0]]), 0)


def _loss_of_padded(x):
    n = count(x)
    filled = tf.concat([x, tf.zeros([tf.maximum(8 - n, 0), 4], x.dtype)], 0)
    return gradient_of(lambda z: total(tf.sin(z) * filled[:n]) / real(tf.shape(filled)[0], z), x)


def _pairs_of_chosen(z):
    chosen = tf.boolean_mask(z, z[:, 0] > 0)
    pairs = tf.matmul(chosen, chosen, transpose_b=True)
    return total(tf.concat([pairs, 2 * pairs], -1) ** 2)


def _memory_or_batch(x):
    bank = tf.reshape(tf.range(24, dtype=x.dtype), [6, 4])
    return tf.cond(count(x) > 4, lambda: bank, lambda: x)


def _bank_after_warm_up(x):
    rest = tf.cond(count(x) > 3, lambda: tf.ones([6, 4], x.dtype), lambda: x)
    return mean(tf.matmul(x, rest, transpose_b=True))


def _widened(x):
    found = tf.while_loop(
        lambda i, z: i < 2,
        lambda i, z: (i + 1, tf.concat([z, z], 0)),
        [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])],
    )[1]
    return [total(found), tf.shape(found), found]


def _appended(x):
    found = tf.while_loop(
        lambda i, z: i < 3,
        lambda i, z: (i + 1, tf.concat([z, tf.ones([1, 4], x.dtype)], 0)),
        [0, x],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 4])],
    )[1]
    return [mean(found, 0), count(found)]


def _halved(x):
    return tf.while_loop(
        lambda z: count(z) > 1,
        lambda z: (z[: (count(z) + 1) // 2],),
        [x],
        shape_invariants=[tf.TensorShape([None, 4])],
    )[0]


def _segments_of_positions(positions, x):
    kinds = tf.gather(tf.cast(x[:, 1] > 0, tf.int64) + tf.cast(x[:, 2] > 0, tf.int64), positions)
    segments = tf.math.unsorted_segment_max, tf.math.unsorted_segment_sum
    return [real(fn(positions, kinds, 3), x) for fn in segments]


EXTENTS = {  # tensors with such extents
    "pad to 4": _padded_to(4),
    "pad to 8": _padded_to(8),
    "pad to 8, loss and gradient": _loss_of_padded,
    "pad both sides": lambda x: tf.pad(x, [[1, 2], [0, 0]]),
    "pad with ones": lambda x: mean(tf.pad(x, [[0, tf.maximum(6 - count(x), 0)], [0, 1]], constant_values=1)),
    "mirror pad": lambda x: tf.pad(x, [[1, 0], [0, 0]], "SYMMETRIC"),
    "x[3:] padded by 3": lambda x: x + tf.pad(x[3:], [[0, tf.minimum(3, count(x))], [0, 0]]),
    "x[3:]": lambda x: [x[3:], total(x[3:]), tf.shape(x[3:])],
    "x[:3]": lambda x: [x[:3], total(x[:3]), tf.shape(x[:3])],
    "x[-3:]": lambda x: [x[-3:], mean(x[-3:])],
    "x[:-1] and x[1:]": lambda x: mean((x[1:] - x[:-1]) ** 2, 0),
    "x[:max(n - 1, 1)]": lambda x: mean(x[: tf.maximum(count(x) - 1, 1)]),
    "x[::2]": lambda x: [x[::2], x[1::2], x[::-1]],
    "x[n // 2:]": lambda x: mean(x[count(x) // 2 :]),
    "x[n // 2]": lambda x: x[count(x) // 2],
    "halves": lambda x: x[: count(x) // 2] - x[count(x) // 2 : 2 * (count(x) // 2)],
    "odd and even": lambda x: total(x[: 2 * (count(x) // 2) : 2] * x[1::2]),
    "tf.slice with a size": lambda x: tf.slice(x, [0, 1], [count(x), 2]),
    "tf.slice with n - 1": lambda x: tf.slice(x, [1, 0], [count(x) - 1, 4]),
    "tf.slice with -1": lambda x: tf.slice(x, [1, 0], [-1, 4]),
    "tf.slice of all": lambda x: tf.slice(x, [0, 0], [-1, -1]),
    "tf.slice with a constant": lambda x: tf.slice(x, [0, 0], [3, 4]),
    "tf.slice with min": lambda x: tf.slice(x, [0, 0], [tf.minimum(count(x), 3), 4]),
    "tf.slice of half": lambda x: tf.slice(x, [count(x) // 2, 0], [count(x) - count(x) // 2, 2]),
    "tf.slice along features": lambda s: tf.slice(s, [0, 1, 0], [-1, 3, 3]),
    "gradient of tf.slice": lambda x: gradient_of(
        lambda z: total(tf.slice(z, [1, 0], [count(z) - 1, 2]) ** 2), x
    ),
    "gradient of x[3:]": lambda x: gradient_of(lambda z: total(z[3:] ** 2), x),
    "gradient of x[:3]": lambda x: gradient_of(lambda z: total(z[:3] ** 2), x),
    "gradient of x[-2:]": lambda x: gradient_of(lambda z: mean(z[-2:] ** 2), x),
    "gradient of pad": lambda x: gradient_of(
        lambda z: mean(tf.pad(z, [[0, tf.maximum(4 - count(z), 0)], [0, 0]]) ** 2), x
    ),
    "squeeze": lambda x: tf.squeeze(x),
    "squeeze of ones": lambda x: tf.squeeze(x[:, None, :1]),
    "squeeze, then its shape": lambda x: [tf.shape(tf.squeeze(x[:, :1])), tf.size(tf.squeeze(x))],
    "squeeze of a tensor of n, n": lambda x: tf.squeeze(tf.matmul(x, x, transpose_b=True)),
    "squeeze of labels": lambda x, y: mean((tf.squeeze(x[:, :1]) - tf.cast(y, x.dtype)) ** 2),
    "gather of range": lambda x: tf.gather(x, tf.range(count(x))),
    "gather of range - 1": lambda x: tf.gather(x, tf.range(count(x) - 1)),
    "gather of range + 1": lambda x: tf.gather(x, tf.range(count(x) - 1) + 1),
    "gather of a reversed range": lambda x: tf.gather(x, count(x) - 1 - tf.range(count(x))),
    "gather of the next sample": lambda x: tf.gather(x, (tf.range(count(x)) + 1) % count(x)),
    "gather of constants": lambda x: tf.gather(x, [0, 0]),
    "gather of the last": lambda x: tf.gather(x, count(x) - 1),
    "gather of labels": lambda x, y: tf.gather(x, y % count(x)),
    "gather of the own column": lambda x, y: tf.gather(x, y, axis=1, batch_dims=1),
    "gather of transposed logits": lambda x: tf.gather(
        tf.transpose(tf.matmul(x, x, transpose_b=True)), tf.range(count(x)), axis=1, batch_dims=1
    ),
    "gradient of gather of range": lambda x: gradient_of(
        lambda z: total(tf.gather(z, tf.range(count(z))) ** 2), x
    ),
    "gather_nd of a diagonal": lambda x: tf.gather_nd(
        tf.matmul(x, x, transpose_b=True), tf.stack([tf.range(count(x))] * 2, 1)
    ),
    "gather_nd of labels": lambda x, y: tf.gather_nd(x, tf.stack([tf.range(count(x)), y], 1)),
    "scatter_nd of range": lambda x: tf.scatter_nd(tf.range(count(x))[:, None], x, tf.shape(x)),
    "scatter_nd to more samples": lambda x: tf.scatter_nd(tf.range(count(x))[:, None], x, [count(x) + 3, 4]),
    "scatter_nd by labels": lambda x, y: tf.scatter_nd(y[:, None], x, [3, 4]),
    "tensor_scatter_nd_add": lambda x: tf.tensor_scatter_nd_add(x, [[0]], tf.ones([1, 4], x.dtype)),
    "tensor_scatter_nd_update of the last": lambda x: tf.tensor_scatter_nd_update(
        x, [[count(x) - 1]], tf.ones([1, 4], x.dtype)
    ),
    "segment sum": lambda x, y: tf.math.segment_sum(x, tf.sort(y)),
    "unsorted segment sum of n segments": lambda x, y: tf.math.unsorted_segment_sum(x, y, count(x)),
    "unsorted segment mean": lambda x, y: tf.math.unsorted_segment_mean(x, y, 3),
    "unsorted segment max": lambda x, y: tf.math.unsorted_segment_max(x, y, 5),
    "unsorted segment prod": lambda x, y: tf.math.unsorted_segment_prod(x, y, 5),
    "split in two of 2n": lambda x: tf.split(tf.concat([x, 2 * x], 0), 2),
    "split by sizes": lambda x: tf.split(x, [count(x) // 2, count(x) - count(x) // 2]),
    "split of 3n by sizes": lambda x: tf.split(tf.concat([x, 2 * x, x * x], 0), [2 * count(x), count(x)]),
    "split of n and the rest": lambda x: tf.split(tf.transpose(tf.concat([x, x * x], 0)), [count(x), -1], 1),
    "split of 1 and the rest": lambda x: tf.split(x, [1, -1]),
    "split of features": lambda x: tf.split(x, [1, 3], 1),
    "average pooling along the batch": lambda x: tf.nn.avg_pool1d(x[None], 2, 2, "SAME"),
    "max pooling along the batch": lambda x: tf.nn.max_pool1d(x[None], 3, 1, "SAME"),
    "pooling of 2 x 2 of samples": lambda x: tf.nn.max_pool2d(x[None, :, :, None], 2, 2, "SAME"),
    "convolution along the batch": lambda x: tf.nn.conv1d(x[None], tf.ones([3, 4, 2], x.dtype), 1, "SAME"),
    "convolution of transposes": lambda x: tf.nn.conv1d(
        tf.transpose(x)[:, :, None], tf.ones([2, 1, 2], x.dtype), 1, "SAME"
    ),
    "gradient of pooling along the batch": lambda x: gradient_of(
        lambda z: total(tf.nn.avg_pool1d(z[None], 2, 1, "SAME") ** 2), x
    ),
    "pooling with a stride of 3": lambda x: mean(tf.nn.avg_pool1d(x[None], 3, 3, "SAME")),
    "frames": lambda x: tf.signal.frame(x[:, 0], 2, 1),
    "frames, padded": lambda x: tf.signal.frame(x[:, 0], 4, 2, pad_end=True),
    "frames along axis 0": lambda x: tf.signal.frame(x, 2, 2, axis=0),
    "overlap and add": lambda x: tf.signal.overlap_and_add(x, 2),
    "bank or batch": _memory_or_batch,
    "bank after a warm-up": _bank_after_warm_up,
    "z[:2] or z": lambda x: tf.cond(count(x) > 4, lambda: x[:2], lambda: x),
    "z[:2] or z, its mean": lambda x: mean(tf.cond(count(x) > 4, lambda: x[:2], lambda: x), 0),
    "z or its transpose": lambda x: total(tf.cond(count(x) > 4, lambda: tf.transpose(x), lambda: x) ** 2),
    "gradient of concat of unknown extents": lambda x: gradient_of(_pairs_of_chosen, x),
    "z or both": lambda x: mean(tf.cond(mean(x) > 0, lambda: tf.concat([x, x], 0), lambda: x), 0),
    "sum or samples": lambda x: tf.cond(count(x) > 4, lambda: total(x, 0, keepdims=True), lambda: x),
    "switch of extents": lambda x: tf.switch_case(
        tf.minimum(count(x) // 3, 2), [lambda: x, lambda: x[:1], lambda: tf.concat([x, x], 0)]
    ),
    "widened loop": _widened,
    "appended loop": _appended,
    "halving loop": _halved,
    "tile": lambda x: tf.tile(x, [2, 1]),
    "tile n times": lambda x: tf.tile(tf.constant([[1.0, 2.0]]), [count(x), 1]),
    "tile of n x n": lambda x: tf.tile(x, [count(x), 1]),
    "repeat": lambda x: [tf.repeat(x, 2, 0), tf.repeat(x, 2, 1)],
    "repeat n times": lambda x: tf.repeat(tf.constant([1.0, 2.0]), count(x)),
    "repeat by labels": lambda x, y: tf.repeat(x, y, 0),
    "reshape to pairs": lambda x: tf.reshape(x, [count(x) * 2, 2]),
    "reshape to -1": lambda x: [tf.reshape(x, [-1]), tf.reshape(x, [2, -1]), tf.reshape(x, [-1, 2])],
    "reshape by constants": lambda x: tf.reshape(x, [4, -1]),
    "reshape of 2n to 2, n": lambda x: tf.reshape(tf.concat([x, 2 * x], 0), [2, -1, 4]),
    "reshape of pairs to n, n": lambda x: tf.reshape(
        tf.reshape(x[:, None] + x[None], [-1, 4]), [count(x), -1]
    ),
    "repeat of 3n": lambda s: mean(tf.reshape(s[:, :3], [-1, 3]), 0),
    "range": lambda x: tf.range(count(x)),
    "range by twos": lambda x: tf.range(0, count(x), 2),
    "range to the square": lambda x: tf.range(count(x) ** 2),
    "range from n down": lambda x: tf.range(count(x), 0, -1),
    "positions": lambda x: tf.cast(tf.range(count(x)), x.dtype)[:, None] * x,
    "where": lambda x: [tf.where(x > 0), tf.shape(tf.where(x[:, 0] > 0))],
    "casts of positions": lambda x: [
        real(tf.cast(tf.where(x[:, 0] > -9), tf.bool), x),
        real(tf.cast(tf.where(x[:, 0] > 0), tf.bool), x),
    ],
    "casts of chosen sizes": lambda x: [
        real(tf.cast(tf.shape(tf.boolean_mask(x, x[:, 0] > limit)), dtype), x)
        for limit in (0, 9)
        for dtype in (tf.bool, tf.int8, tf.bfloat16)
    ],
    "segments of positions": lambda x: _segments_of_positions(tf.where(x[:, 0] > 0)[:, 0], x),
    "contrast along the batch": lambda x: tf.image.adjust_contrast(x[:, :, None], 2.0),
    "contrast of images": lambda x: tf.image.adjust_contrast(x[:, :, None, None], 2.0),
    "boolean mask": lambda x: [tf.boolean_mask(x, x[:, 0] > 0), mean(tf.boolean_mask(x, x[:, 0] > -9))],
    "mask without the diagonal": lambda x: tf.reshape(
        tf.boolean_mask(tf.matmul(x, x, transpose_b=True), ~tf.eye(count(x), dtype=tf.bool)), [count(x), -1]
    ),
    "unique labels": lambda y: [*tf.unique(y), tf.size(tf.unique(y)[0])],
    "unique with counts": lambda y: tf.unique_with_counts(y),
    "number of unique labels": lambda x, y: total(x) / real(tf.size(tf.unique(y)[0]), x),
    "top k of samples": lambda x: tf.math.top_k(tf.transpose(x), tf.minimum(count(x), 3)),
    "top half": lambda x: mean(tf.math.top_k(x[:, 0], (count(x) + 1) // 2)[0]),
    "sort": lambda x: [tf.sort(x, axis=0), tf.argsort(x, axis=0), tf.sort(x)],
    "roll": lambda x: [tf.roll(x, 1, 0), tf.roll(x, 3, 0), tf.roll(x, 1, 1)],
    "roll by half": lambda x: tf.roll(x, count(x) // 2, 0),
    "reverse": lambda x: [tf.reverse(x, [0]), tf.reverse(x, [1]), tf.reverse_sequence(x, [1] * 4, 0, 1)],
    "cumulated": lambda x: [tf.cumsum(x), tf.cumsum(x, exclusive=True), tf.cumsum(x, reverse=True)],
    "median": lambda x: tf.sort(x[:, 0])[count(x) // 2],
    "diagonal": lambda x: tf.linalg.diag_part(tf.matmul(x, x, transpose_b=True)),
    "diagonal of samples": lambda x: [tf.linalg.diag_part(x), tf.linalg.diag(x[:, 0])],
    "band part": lambda x: tf.linalg.band_part(tf.matmul(x, x, transpose_b=True), 1, 1),
    "triangle": lambda x: total(tf.linalg.band_part(x, 0, -1)),
    "set diagonal": lambda x: tf.linalg.set_diag(
        tf.matmul(x, x, transpose_b=True), tf.zeros([count(x)], x.dtype)
    ),
    "determinant": lambda x: tf.linalg.det(
        tf.matmul(x, x, transpose_b=True) + tf.eye(count(x), dtype=x.dtype)
    ),
    "inverse": lambda x: tf.linalg.inv(
        tf.matmul(x, x, transpose_b=True) + 9 * tf.eye(count(x), dtype=x.dtype)
    ),
    "batch to space": lambda x: raw.BatchToSpace(
        input=tf.tile(x[:, :, None, None], [4, 1, 1, 1]), crops=[[0, 0], [0, 0]], block_size=2
    ),
    "space to batch": lambda x: raw.SpaceToBatch(
        input=tf.reshape(x, [-1, 2, 2, 1]), paddings=[[0, 0], [0, 0]], block_size=2
    ),
    "extract patches": lambda x: tf.image.extract_patches(
        x[None, :, :, None], [1, 2, 2, 1], [1, 1, 1, 1], [1, 1, 1, 1], "SAME"
    ),
    "resize to samples": lambda x: tf.image.resize(x[None, :, :, None], [count(x) + 1, 4]),
    "array stack": lambda x: tf.TensorArray(x.dtype, count(x)).unstack(x).stack(),
    "array gather": lambda x: tf.TensorArray(x.dtype, count(x)).unstack(x).gather([0]),
    "array split": lambda x: (
        tf.TensorArray(x.dtype, 2, infer_shape=False).split(x, [1, count(x) - 1]).concat()
    ),
    "array concat": lambda s: tf.TensorArray(s.dtype, 5).unstack(tf.transpose(s, [1, 0, 2])).concat(),
    "array written": lambda x: tf.TensorArray(x.dtype, 2).write(0, x).write(1, 2 * x).stack(),
    "map over samples": lambda x: tf.map_fn(lambda row: row * 2, x),
    "vectorized map": lambda x: tf.vectorized_map(lambda row: total(row), x),
    "scan over samples": lambda x: tf.scan(lambda a, row: 0.5 * a + row, x),
    "fold over samples": lambda x: tf.foldl(lambda a, row: 0.5 * a + row, x),
    "einsum": lambda x: [tf.einsum("ij,kj->ik", x, x), tf.einsum("ij,ij->", x, x), tf.einsum("ij->ji", x)],
    "confusion matrix": lambda y: tf.math.confusion_matrix(y, (y + 1) % 3, 3),
    "in top k": lambda x, y: tf.math.in_top_k(y, tf.cast(x, tf.float32), 2),
    "bincount": lambda y: [tf.math.bincount(y, minlength=3), tf.math.bincount(y)],
    "histogram": lambda x: tf.histogram_fixed_width(x, [-2.0, 2.0], 4),
    "one-hot of n classes": lambda x, y: tf.one_hot(y, count(x)),
    "edit of a matrix": lambda x: tf.linalg.matmul(tf.eye(count(x), dtype=x.dtype), x),
    "outer product of two views": lambda x, s: tf.matmul(x[:, :3], s[:, 0], transpose_b=True),
    "broadcast to constants": lambda x: tf.broadcast_to(total(x, 0, keepdims=True), [3, 4]),
    "broadcast to n": lambda x: tf.broadcast_to(tf.constant([1.0, 2.0, 3.0, 4.0]), tf.shape(x)),
    "stack of n": lambda x: tf.stack([x, 2 * x], 0),
    "unstack": lambda x: tf.unstack(x, axis=1),
    "meshgrid of samples": lambda x: tf.meshgrid(x[:, 0], x[:, 1]),
    "spectra of samples": lambda x: [tf.abs(tf.signal.rfft(x)), tf.signal.irfft(tf.signal.rfft(x))],
    "fft along the batch": lambda x: tf.abs(tf.signal.fft(tf.cast(tf.transpose(x), tf.complex128))),
    "real fft along the batch": lambda x: tf.abs(tf.signal.rfft(tf.cast(tf.transpose(x), tf.float32))),
    "norms": lambda x: [tf.norm(x, axis=0), tf.norm(x), tf.norm(x, ord=1), tf.norm(x, "euclidean", 1)],
    "softmax over samples": lambda x: [tf.nn.softmax(x, 0), tf.nn.log_softmax(x, 0)],
    "quantize": lambda x: tf.quantization.fake_quant_with_min_max_args(tf.cast(x, tf.float32)),
    "shape as a weight": lambda x: x / real(tf.maximum(count(x), 4), x),
    "negative slice": lambda x: x[tf.maximum(count(x) - 3, 0) :],
    "first or zero": lambda x: tf.concat([x, tf.zeros([1, 4], x.dtype)], 0)[: count(x)],
    "strided by n": lambda x: tf.reshape(tf.tile(x, [3, 1]), [-1])[:: count(x)],
    "searchsorted": lambda x: tf.searchsorted(tf.sort(x[:, 0]), x[:, 1]),
    "searchsorted in each sample": lambda x: tf.searchsorted(tf.sort(x), x, side="right"),
}

VIEWS = {  # arrays with other numbers of samples, in units of the first
    "two views": lambda x, x2: mean(tf.matmul(x, x2, transpose_b=True)),
    "matrix of two views": lambda x, x2: tf.matmul(x, x2, transpose_b=True),
    "counts of two views": lambda x, x2: [count(x), count(x2), count(x) + count(x2), count(x2) // count(x)],
    "both views": lambda x, x2: tf.concat([x, x2], 0),
    "mean of both views": lambda x, x2: mean(tf.concat([x, x2], 0), 0),
    "pairs of two views": lambda x, x2: tf.reshape(x[:, None] + x2[None], [-1, 4]),
    "pairs in a vector": lambda x, x2: mean(tf.reshape(x[:, None] + x2[None], [count(x) * count(x2), 4]), 0),
    "views of the same size": lambda x, x2: x + x2[: count(x)],
    "views of half the size": lambda x, x2: x2 + tf.repeat(x, 2, 0),
    "queries by 2": lambda x, x2: tf.reshape(x2, [count(x), 2, 4]),
    "queries by -1": lambda x, x2: x[:, None] * tf.reshape(x2, [count(x), -1, 4]),
    "difference of sizes": lambda x, x2: mean(x2[: count(x2) - count(x)], 0),
    "smaller of two sizes": lambda x, x3: mean(x3[: tf.minimum(count(x), count(x3) // 2)], 0),
    "three views": lambda x, x2, x3: mean(tf.concat([x, x2, x3], 0), 0),
    "sizes of three views": lambda x, x2, x3: [count(x) * count(x2) * count(x3), count(x3) - count(x2)],
    "prototypes": lambda x, y, x3: tf.nn.softmax(
        -total((x3[:, None] - tf.math.unsorted_segment_mean(x, y, 3)[None]) ** 2, -1)
    ),
    "gather from the other view": lambda x, x2: tf.gather(x2, tf.range(count(x))),
    "views of 2 and of 3": lambda x2, x3: [count(x2) + count(x3), mean(tf.concat([x2, x3], 0), 0)],
    "pad to the other view": lambda x, x2: mean(tf.pad(x, [[0, count(x2) - count(x)], [0, 0]]) * x2, 0),
    "equal sizes": lambda x, x2: tf.cond(tf.equal(count(x), count(x2)), lambda: mean(x), lambda: mean(x2)),
}
