"""Small functions of a batch, one or more for each rule: uneven shards must give the result of the full batch."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from partition.table_programs import TABLES

_R = np.random.default_rng(0)
X, Y, S = _R.normal(size=(7, 4)), _R.integers(0, 3, 7), _R.normal(size=(7, 5, 3))
IMAGES = _R.normal(size=(7, 6, 6, 2))
W, V = tf.constant(_R.normal(size=(4, 3))), tf.constant(_R.normal(size=(3, 4)))
KERNEL = tf.constant(_R.normal(size=(3, 3, 2, 2)))
TABLE = tf.Variable(_R.normal(size=(3, 4)))
WORDS = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer([0, 1], [2.5, -1.0], tf.int64, tf.float64), 0.5
)
mean, total = tf.reduce_mean, tf.reduce_sum


def with_gradient(loss_of):
    """The loss and its gradient with respect to `W`."""

    def fn(*batch):
        w = tf.identity(W)
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = loss_of(w, *batch)
        return [loss, tape.gradient(loss, w)]

    return fn


def _contrastive(w, x):
    z = tf.math.l2_normalize(tf.concat([x @ w, tf.sin(x) @ w], 0), -1)
    n = tf.shape(x)[0]
    logits = z @ tf.transpose(z) - 1e9 * tf.eye(2 * n, dtype=z.dtype)
    return mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(tf.concat([tf.range(n) + n, tf.range(n)], 0), logits)
    )


def _gradient_penalty(w, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = total(tf.tanh(x @ w), 1)
    return mean((tf.sqrt(total(tape.gradient(out, x) ** 2, 1)) - 1) ** 2)


def _jacobian(w, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = tf.tanh(x @ w)
    return mean(tape.batch_jacobian(out, x) ** 2)


def _convolution(x):
    kernel = tf.identity(KERNEL)
    with tf.GradientTape() as tape:
        tape.watch([kernel, x])
        z = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), W[0, :2])
        z = tf.nn.avg_pool2d(tf.nn.max_pool2d(tf.nn.relu(z), 2, 2, "VALID"), 2, 1, "VALID")
        loss = mean(z**2)
    return [loss, *tape.gradient(loss, [kernel, x])]


def _persistent_branch(x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        z = tf.cond(mean(x) > 0, lambda: tf.sin(x), lambda: x**2)
        losses = mean(z), total(z**2)
    return [tape.gradient(loss, x) for loss in losses]


def _sizes_of_a_growing_batch(x):
    def grow(i, z, sizes):
        return i + 1, tf.concat([z, z], 0), sizes.write(i, tf.shape(z))

    sizes = tf.TensorArray(tf.int32, 0, dynamic_size=True, infer_shape=False)
    shapes = [tf.TensorShape(each) for each in ([], [None, 4], None)]
    _, z, sizes = tf.while_loop(lambda i, *_: i < 3, grow, [0, x, sizes], shape_invariants=shapes)
    return [sizes.stack(), total(z)]


def _experts(w, x):
    best = tf.one_hot(tf.argmax(x @ w, -1), 3, dtype=x.dtype)
    places = tf.cumsum(best, 0) * best
    balance = total(mean(best, 0) * mean(tf.nn.softmax(x @ w), 0))
    return balance + mean(tf.cast(places <= 2, x.dtype) * (x @ w))


PROGRAMS = {
    "mean": (lambda x: mean(x), X),
    "sum": (with_gradient(lambda w, x: total(x @ w)), X),
    "mean and sum": (with_gradient(lambda w, x: mean(x @ w) + 1e-6 * total((x @ w) ** 2)), X),
    "cross-entropy": (
        with_gradient(lambda w, x, y: mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w))),
        X,
        Y,
    ),
    "dense cross-entropy": (
        with_gradient(
            lambda w, x, y: mean(
                tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(y, 3, dtype=x.dtype), x @ w)
            )
        ),
        X,
        Y,
    ),
    "variance": (with_gradient(lambda w, x: mean(x @ w) + 1e-6 * total(tf.math.reduce_variance(x @ w, 0))), X),
    "covariance": (
        with_gradient(
            lambda w, x: total(
                tf.matmul(z := x @ w - mean(x @ w, 0), z, transpose_a=True)
                / (tf.cast(tf.shape(x)[0], x.dtype) - 1)
            )
        ),
        X,
    ),
    "contrastive": (with_gradient(_contrastive), X),
    "pairs": (
        with_gradient(lambda w, x: mean(total(((x @ w)[:, None] - (x @ w)[None]) ** 2, -1))),
        X,
    ),
    "maximum": (with_gradient(lambda w, x: tf.reduce_max(x @ w) - tf.reduce_min(-(x @ w))), X),
    "any and all": (
        lambda x: [tf.reduce_any(x > 2.0), tf.reduce_all(x > -9.0), tf.reduce_prod(x), tf.norm(x)],
        X,
    ),
    "minimum of two maxima": (lambda x: tf.maximum(tf.reduce_max(x, 0), tf.reduce_max(tf.sin(x), 0)), X),
    "ratio": (
        with_gradient(
            lambda w, x: total(tf.where(x[:, :1] > 0, x @ w, 0.0)) / total(tf.cast(x[:, :1] > 0, x.dtype))
        ),
        X,
    ),
    "mean of chosen samples": (with_gradient(lambda w, x: mean(tf.boolean_mask(x @ w, x[:, 0] > 0) ** 2)), X),
    "entropy": (
        with_gradient(lambda w, x: -total((p := mean(tf.nn.softmax(x @ w), 0)) * tf.math.log(p))),
        X,
    ),
    "branch": (
        with_gradient(
            lambda w, x: tf.cond(mean(x) > 0, lambda: mean(x @ w), lambda: mean((x @ w) ** 2))
        ),
        X,
    ),
    "loop": (
        with_gradient(
            lambda w, x: mean(
                tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, 1.5 * tf.tanh(z)), [0, x @ w])[1] ** 2
            )
        ),
        X,
    ),
    "loop that adds up samples": (
        lambda s: tf.while_loop(
            lambda i, a: i < 5, lambda i, a: (i + 1, a + mean(s[:, i] ** 2)), [0, tf.constant(0.0, tf.float64)]
        )[1],
        S,
    ),
    "loop with a collective": (
        lambda x: tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z / tf.norm(z)), [0, x])[1],
        X,
    ),
    "scan over time": (
        lambda s: mean(tf.scan(lambda h, v: tf.tanh(0.5 * h + v), tf.transpose(s, [1, 0, 2]))[-1] ** 2),
        S,
    ),
    "scan over samples": (lambda x: mean(tf.scan(lambda a, b: 0.5 * a + b, x)), X),
    "map over samples": (lambda x: mean(tf.map_fn(lambda v: total(v**2), x)), X),
    "roll, reverse, sort": (
        with_gradient(
            lambda w, x: mean((x @ w) * tf.roll(x @ w, 1, 0) + tf.reverse(x @ w, [0]) ** 2)
            + tf.sort((x @ w)[:, 0])[3]
        ),
        X,
    ),
    "roll, reverse, cumsum of features": (
        lambda x: mean(tf.roll(x, 1, 1) * tf.reverse(x, [1]) * tf.cumsum(x, 1)),
        X,
    ),
    "one sample": (with_gradient(lambda w, x: total((x @ w)[0] * (x @ w))), X),
    "reshapes": (
        with_gradient(
            lambda w, s: mean(
                tf.reshape(tf.reshape(s, [-1, 3]) @ w[:3], [tf.shape(s)[0], -1, 3])[:, 2] ** 2
            )
        ),
        S,
    ),
    "groups of features": (lambda x: mean(tf.reshape(x, [-1, 2, 2]), [0, 2]), X),
    "two blocks": (
        lambda x: (z := tf.concat([x, 2 * x], 0), total(z[: tf.shape(x)[0]] * z[tf.shape(x)[0] :]))[1],
        X,
    ),
    "attention": (
        with_gradient(
            lambda w, s: mean(tf.nn.softmax(tf.einsum("bqd,bkd->bqk", s @ w[:3], s)) @ s)
        ),
        S,
    ),
    "matrices of samples": (
        lambda x: mean(tf.linalg.det(tf.einsum("bi,bj->bij", x, x) + tf.eye(4, dtype=x.dtype))),
        X,
    ),
    "batched product with a table": (lambda s: mean(tf.matmul(s, V[None]) ** 2), S),
    "softmax over samples": (lambda x: total(tf.nn.softmax(x, 0)[:, 0] ** 2), X),
    "top of features, of samples": (
        lambda x: [total(tf.math.top_k(x, 2)[0]), total(tf.math.top_k(x[:, 0], 3)[0])],
        X,
    ),
    "gather by sample": (
        with_gradient(lambda w, x, y: mean(tf.gather(x @ w, y, axis=1, batch_dims=1) ** 2)),
        X,
        Y,
    ),
    "gather in a table": (lambda x, y: mean(tf.gather(W, y) * x[:, :1]), X, Y),
    "gather of positions": (
        with_gradient(
            lambda w, x, y: mean(
                tf.gather_nd(x @ w, tf.stack([tf.range(tf.shape(x)[0], dtype=y.dtype), y], 1)) ** 2
            )
        ),
        X,
        Y,
    ),
    "segments": (lambda x, y: total(tf.math.unsorted_segment_mean(x, y, 3) ** 2), X, Y),
    "largest of segments": (lambda x, y: tf.math.unsorted_segment_max(x, y, 3), X, Y),
    "scatter": (
        lambda x, y: [
            tf.scatter_nd(y[:, None], x, [3, 4]),
            tf.tensor_scatter_nd_add(tf.ones([3, 4], x.dtype), y[:, None], x),
        ],
        X,
        Y,
    ),
    "counts": (lambda y: [tf.math.bincount(y, minlength=3, maxlength=3), tf.math.confusion_matrix(y, y, 3)], Y),
    "sizes": (
        lambda x: total(x) / tf.cast(tf.size(x), x.dtype) * tf.cast(tf.shape(x)[0], x.dtype) ** 2
        + tf.cast(tf.raw_ops.Rank(input=x), x.dtype),
        X,
    ),
    "filled": (lambda x: mean(x * tf.ones_like(x) * tf.fill([tf.shape(x)[0], 1], x.dtype.as_numpy_dtype(2))), X),
    "filled and compared": (lambda x: total(tf.ones([tf.shape(x)[0]], x.dtype)[None] * x[:, :1]), X),
    "tiled": (
        lambda x: total(tf.tile(x, [2, 1])[: tf.shape(x)[0]] * tf.tile(x[:, :1], [1, 4]))
        + total(tf.broadcast_to(mean(x, 0, keepdims=True), tf.shape(x)) * x),
        X,
    ),
    "stacked": (lambda x: mean(tf.stack([x, tf.sin(x)], 1)[:, 0] * tf.unstack(tf.stack([x, x]))[1]), X),
    "split and padded": (
        lambda x: mean(tf.pad(tf.split(x, 2, 1)[1], [[0, 0], [1, 0]]) * tf.squeeze(x[:, None, :3], 1)),
        X,
    ),
    "padded samples": (lambda x: mean(tf.pad(x, [[1, 1], [0, 0]]) ** 2), X),
    "linear in a sum": (
        lambda x: tf.reshape(tf.transpose(tf.tile(-mean(x, 0)[None] * 2.0 + total(x, 0)[None], [2, 1])), [-1]),
        X,
    ),
    "cast": (lambda x: tf.cast(total(tf.cast(x > 0, tf.int32)), tf.float64) + tf.cast(total(x) > 0, tf.float64), X),
    "chosen by a condition": (
        lambda x: total(tf.where(mean(x) > 0, mean(x, 0), total(x, 0))),
        X,
    ),
    "l2 loss": (lambda x: tf.nn.l2_loss(x), X),
    "argmax": (lambda x: [total(tf.argmax(x, 1)), tf.argmax(x, 0)], X),
    "experts": (with_gradient(_experts), X),
    "gradient penalty": (with_gradient(_gradient_penalty), X),
    "batch jacobian": (with_gradient(_jacobian), X),
    "convolution": (_convolution, IMAGES),
    "resized": (lambda x: mean(tf.image.resize(x, [3, 3]) ** 2), IMAGES),
    "squeezed without axes": (lambda s: mean(total(tf.squeeze(s[:, :1]) ** 2, 1) ** 2), S),
    "mean of integers": (lambda y: [mean(y), mean(tf.stack([y, 2 * y], 1), 0)], Y),
    "one matrix for all samples": (
        lambda x: [
            tf.linalg.triangular_solve(tf.constant(np.tril(np.ones((1, 4, 4)))), x[:, :, None]),
            tf.linalg.triangular_solve(tf.eye(4, dtype=x.dtype) + x[:, :, None] ** 2, tf.ones([1, 4, 1], x.dtype)),
        ],
        X,
    ),
    "positions of chosen samples": (
        lambda x: [tf.where(x[:, 0] > 0)[None, :, 0], tf.transpose(tf.where(x[:, 0] > 0)), tf.where(x[:, 0] > 0)],
        X,
    ),
    "positions of chosen entries": (
        with_gradient(lambda w, s: mean(tf.boolean_mask(s @ w[:3], s[:, :, 0] > 0) ** 2)),
        S,
    ),
    "positions along another axis": (
        lambda x, s: tf.gather(tf.reshape(s, [-1, 3]), tf.where(x[:, 0] > 0)[:, 0]),
        X,
        S,
    ),
    "sorted positions": (
        lambda x: [
            tf.sort(tf.where(x[:, 0] > 0)[:, 0], direction="DESCENDING"),
            tf.nn.top_k(tf.cast(tf.where(x[:, 0] > 0), tf.int32), 1)[0],
        ],
        X,
    ),
    "counted positions": (
        lambda x, y: [
            tf.math.unsorted_segment_min(tf.where(x[:, 0] > 0)[:, 0], tf.boolean_mask(y, x[:, 0] > 0), 3),
            tf.math.bincount(tf.where(x[:, 0] > 0)[:, 0], minlength=9, maxlength=9),
        ],
        X,
        Y,
    ),
    "positions from a branch": (
        lambda x: tf.cond(
            mean(x) > 9, lambda: tf.where(x[:, 0] > 0)[:, 0], lambda: tf.where(x[:, 1] > 0)[:, 0]
        ),
        X,
    ),
    "number of chosen samples": (
        lambda x: (z := tf.boolean_mask(x, x[:, 0] > 0), [tf.shape(z)[0], tf.shape(z)[-2], tf.size(z)])[1],
        X,
    ),
    "compared sizes": (
        lambda x: [
            tf.cond(tf.shape(x)[0] > 8, lambda: total(x), lambda: mean(x)),
            tf.where(tf.shape(x)[0] < 8, total(x), mean(x)),
        ],
        X,
    ),
    "sizes of two tensors": (
        lambda x: (n := tf.shape_n([x, x[:, :2]]), tf.cast(n[0][0] * n[1][1], x.dtype) * mean(x))[1],
        X,
    ),
    "slices that are longer than the batch": (
        with_gradient(
            lambda w, x: (z := tf.sort(x @ w, 0)[:9], total(z**2) / tf.cast(tf.shape(z)[0], x.dtype))[1]
            + mean((x @ w)[-9:])
        ),
        X,
    ),
    "the smaller of two sizes": (
        with_gradient(
            lambda w, x: (
                wide := tf.concat([x @ w, x, x**2], 1)[:, :9],
                r := tf.stop_gradient(tf.abs(tf.linalg.qr(wide)[1])),
                mean(tf.linalg.svd(wide, compute_uv=False))
                + mean(tf.linalg.diag_part(wide) ** 2)
                + mean(x @ w) * tf.cast(tf.size((x @ w)[8:9]) + tf.shape(r)[0], x.dtype) * tf.reduce_max(r)
                + mean((x @ w - (x @ w)[:1]) ** 2),
            )[2]
        ),
        X,
    ),
    "every other sample twice": (
        with_gradient(
            lambda w, x: (
                z := tf.concat([(x @ w)[::2], (x @ w)[::2]], 0),
                tf.reduce_logsumexp(z @ tf.transpose(x @ w)) * tf.cast(tf.shape(z)[0], x.dtype),
            )[1]
        ),
        X,
    ),
    "sizes in quotients": (
        lambda x: [
            tf.reshape(x, [tf.size(x) // 4, 4]) * tf.cast(tf.size(x) // tf.shape(x)[0], x.dtype),
            tf.zeros([tf.maximum(tf.shape(x)[0], 1)]) + tf.cast(4 * tf.shape(x)[0] % 2, tf.float32),
        ],
        X,
    ),
    "sizes that are no multiple of the batch": (
        lambda x: (
            n := tf.shape(x)[0],
            [
                x[: tf.minimum(n, 64)],
                tf.zeros([tf.maximum(n, 64)]) + tf.cast(x[0, 0], tf.float32),
                total(x[: n - n % 2] ** 2),
                mean(x[: 2 * (n // 2)] + tf.ones([2 * (n // 2), 1], x.dtype)),
                x[: tf.where(n > 5, n // 3, n)] * tf.reduce_max(x),
                tf.ones([2 * tf.cast(0.5 * tf.cast(n, tf.float32), tf.int32), 2]),
                tf.math.top_k(x[:, 0], n // 2)[0],
            ],
        )[1],
        X,
    ),
    "persistent tape over a branch": (_persistent_branch, X),
    "sizes of a growing batch": (_sizes_of_a_growing_batch, X),
    "gathered and split lists": (
        lambda s: (
            times := tf.transpose(s, [1, 0, 2]),
            some := tf.TensorArray(s.dtype, 5).unstack(times).gather([3, 1]),
            of_some := tf.gradients(mean(some**2), s)[0],
            parts := tf.TensorArray(s.dtype, 2, infer_shape=False).split(times, [2, 3]),
            placed := tf.TensorArray(s.dtype, 5).scatter([4, 2, 0, 1, 3], times),
            raw := tf.raw_ops.TensorListScatterV2(
                tensor=times, indices=[4, 2, 0, 1, 3], element_shape=[-1, 3], num_elements=5
            ),
            taken := tf.raw_ops.TensorListGetItem(
                input_handle=raw, index=1, element_shape=[-1, 3], element_dtype=s.dtype
            ),
            [taken, mean(some**2), some, of_some, mean(parts.concat() ** 2), placed.stack()[0]],
        )[-1],
        S,
    ),
    "band": (lambda s: tf.linalg.band_part(s, 0, 1), S),
    "tables": (
        lambda x, y: [WORDS.lookup(y), tf.gather(TABLE, [y, 2 - y])[0], total(tf.gather(TABLE, y)[:, 0] * WORDS.lookup(y))],
        X,
        Y,
    ),
    "inference of batch normalization": (
        lambda x: tf.raw_ops.FusedBatchNormV3(
            x=tf.cast(x, tf.float32), scale=[1.0, 2.0], offset=[0.0, 1.0], mean=[0.5, 0.0], variance=[1.0, 2.0],
            is_training=False,
        )[:3],
        IMAGES,
    ),
}  # fmt: skip

_COUNTS = [2, 0, 3, 1, 0, 4, 2]
RAGGED = tf.RaggedTensor.from_row_lengths(_R.normal(size=(12, 3)), _COUNTS)
SPARSE = tf.sparse.from_dense(np.maximum(_R.normal(size=(7, 3)), 0))


def _of_ragged(r):
    def loss_of(w):
        mapped = r.with_values(tf.tanh(tf.matmul(r.values, w, transpose_b=True)))
        padded, cut = mapped.to_tensor(), mapped[:, :2]
        pooled = (
            total(mapped, 1) + total(padded, 1) + total(cut, 1) + mapped.to_tensor(shape=[None, 1, 4])[:, 0]
        )
        return mean(tf.gather(pooled, r.value_rowids()) ** 2) + mean(pooled**2)

    return with_gradient(loss_of)()


def _of_sparse(x):
    def loss_of(w):
        found = tf.sparse.sparse_dense_matmul(x, w, adjoint_b=True)
        filled, _ = tf.sparse.fill_empty_rows(x, 2.0)
        looked_up = tf.gather(w, filled.indices[:, 1])[:, 0]
        sums = tf.math.segment_sum(looked_up * filled.values, filled.indices[:, 0])
        means = tf.math.segment_mean(filled.values, filled.indices[:, 0])
        return mean(found**2) + mean(tf.sparse.to_dense(tf.sparse.reorder(x)) ** 2) + mean(sums * means)

    return with_gradient(loss_of)()


PROGRAMS |= {"ragged": (_of_ragged, RAGGED), "sparse": (_of_sparse, SPARSE)}
PROGRAMS |= TABLES

SINGLE = (
    "inference of batch normalization", "images", "gradients of images", "volumes", "complex numbers", "other operations",
)  # fmt: skip
"""Programs that compute in float32."""

COMMUNICATED = {
    "persistent tape over a branch": (0, 1, 2, 0), "sizes of a growing batch": (1, 0, 0, 0),
    "mean": (0, 0, 0, 1), "sum": (0, 0, 0, 2), "mean and sum": (0, 0, 0, 2), "cross-entropy": (0, 0, 0, 2),
    "dense cross-entropy": (0, 0, 0, 2), "variance": (0, 2, 0, 2), "covariance": (0, 3, 0, 1),
    "contrastive": (1, 1, 0, 2), "pairs": (1, 1, 0, 2), "maximum": (0, 6, 0, 1), "any and all": (1, 1, 0, 2),
    "minimum of two maxima": (0, 0, 0, 1), "ratio": (0, 2, 0, 1), "mean of chosen samples": (0, 5, 0, 1),
    "entropy": (0, 2, 0, 1), "branch": (0, 1, 0, 2), "loop": (0, 0, 0, 2), "loop that adds up samples": (0, 0, 0, 1),
    "loop with a collective": (1, 0, 0, 0), "scan over time": (0, 0, 0, 1), "scan over samples": (1, 0, 0, 0),
    "map over samples": (1, 0, 0, 0), "roll, reverse, sort": (5, 0, 0, 2),
    "roll, reverse, cumsum of features": (0, 0, 0, 1), "one sample": (0, 2, 0, 2), "reshapes": (0, 0, 0, 2),
    "groups of features": (0, 0, 0, 1), "two blocks": (0, 0, 0, 1), "attention": (0, 0, 0, 2),
    "matrices of samples": (0, 0, 0, 1), "batched product with a table": (0, 0, 0, 1),
    "softmax over samples": (0, 2, 0, 1), "top of features, of samples": (1, 0, 0, 1),
    "gather by sample": (0, 0, 0, 2), "gather in a table": (0, 0, 0, 1), "gather of positions": (0, 0, 0, 2),
    "segments": (0, 2, 0, 0), "largest of segments": (0, 0, 0, 1), "scatter": (0, 0, 0, 2), "counts": (3, 5, 0, 2),
    "sizes": (0, 0, 0, 1), "sizes of two tensors": (0, 0, 0, 1), "slices that are longer than the batch": (2, 0, 0, 1),
    "the smaller of two sizes": (3, 3, 0, 2), "every other sample twice": (2, 4, 0, 1),
    "filled": (0, 0, 0, 1),
    "filled and compared": (0, 0, 0, 1), "tiled": (0, 1, 0, 1),
    "stacked": (0, 0, 0, 1), "split and padded": (0, 0, 0, 1), "padded samples": (1, 0, 0, 0),
    "linear in a sum": (0, 0, 0, 1), "cast": (0, 2, 0, 0), "chosen by a condition": (0, 1, 0, 1),
    "l2 loss": (0, 0, 0, 1), "argmax": (0, 1, 0, 2), "experts": (1, 3, 0, 2), "gradient penalty": (0, 0, 0, 2),
    "batch jacobian": (0, 0, 0, 2), "convolution": (0, 0, 1, 2), "resized": (0, 0, 0, 1),
    "squeezed without axes": (1, 0, 0, 0), "mean of integers": (2, 0, 0, 0),
    "one matrix for all samples": (2, 0, 0, 0), "positions of chosen samples": (0, 0, 3, 0),
    "positions of chosen entries": (0, 5, 0, 1), "positions along another axis": (1, 0, 1, 0),
    "sorted positions": (1, 1, 1, 0), "counted positions": (3, 2, 0, 1), "positions from a branch": (1, 1, 0, 0),
    "number of chosen samples": (0, 0, 0, 3), "compared sizes": (0, 0, 0, 2), "sizes in quotients": (0, 0, 1, 0),
    "sizes that are no multiple of the batch": (2, 2, 0, 0), "gathered and split lists": (0, 0, 4, 2), "band": (0, 0, 1, 0),
    "tables": (0, 0, 2, 1),
    "inference of batch normalization": (0, 0, 1, 0), "functions of one number": (0, 53, 53, 10),
    "functions of two numbers": (0, 4, 95, 31), "complex numbers": (0, 3, 11, 1), "integers": (1, 7, 22, 2),
    "booleans": (3, 4, 4, 5), "strings": (0, 0, 7, 0), "written numbers": (0, 1, 1, 0), "images": (0, 0, 21, 0),
    "gradients of images": (0, 0, 8, 2), "volumes": (0, 0, 2, 2), "matrices": (3, 7, 18, 3),
    "other operations": (3, 4, 35, 20), "draws": (10, 7, 14, 0), "lists of tensors": (8, 0, 12, 5),
    "attention in blocks": (0, 0, 6, 2), "ragged": (0, 4, 0, 2), "sparse": (0, 0, 0, 2),
}  # fmt: skip
"""How many tensors each program gathers and reduces inside, and how many of its results are gathered, and reduced."""
