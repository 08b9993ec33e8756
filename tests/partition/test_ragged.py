"""Steps on ragged arrays: replicas compute the values of their own samples, and match the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from partition_in_parts import UNEVEN, Parts

_R = np.random.default_rng(5)
LENGTHS = [2, 0, 3, 1, 0, 4, 2]
IDS = tf.RaggedTensor.from_row_lengths(_R.integers(0, 6, sum(LENGTHS)), LENGTHS)
VECTORS = tf.RaggedTensor.from_row_lengths(_R.normal(size=(sum(LENGTHS), 3)), LENGTHS)
OTHERS = tf.RaggedTensor.from_row_lengths(_R.integers(0, 4, 9), [0, 1, 1, 3, 0, 0, 4])
NUMBERS = tf.RaggedTensor.from_row_lengths(_R.normal(size=sum(LENGTHS)), LENGTHS)
X, Y = _R.normal(size=(7, 3)), _R.integers(0, 3, 7)
TABLE, W = tf.constant(_R.normal(size=(6, 3))), tf.constant(_R.normal(size=(3, 3)))
mean, total = tf.reduce_mean, tf.reduce_sum


def with_gradient(loss_of):
    """The loss, and its gradients with respect to a table and a matrix."""

    def fn(*batch):
        weights = [tf.identity(TABLE), tf.identity(W)]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = loss_of(*weights, *batch)
        found = tape.gradient(loss, weights, unconnected_gradients="zero")
        return [loss, *map(tf.convert_to_tensor, found)]

    return fn


def look_up(table, ids):
    return tf.nn.embedding_lookup(table, ids)


def entropy(y, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def padded(table, w, ids, y):
    vectors = look_up(table, ids).to_tensor()
    mask = tf.sequence_mask(ids.row_lengths(), tf.shape(vectors)[1], vectors.dtype)[..., None]
    pooled = tf.math.divide_no_nan(total(vectors * mask, 1), total(mask, 1))
    return mean(entropy(y, pooled @ w))


def attention_pooling(table, w, ids, y):
    vectors = look_up(table, ids)
    scores = tf.squeeze(tf.matmul(tf.tanh(vectors.values @ w), w[:, :1]), -1)
    rows, count = ids.value_rowids(), ids.nrows()
    top = tf.math.unsorted_segment_max(scores, rows, count)
    powers = tf.exp(scores - tf.gather(tf.stop_gradient(top), rows))
    shares = powers / tf.gather(tf.math.unsorted_segment_sum(powers, rows, count), rows)
    return mean(entropy(y, tf.math.unsorted_segment_sum(shares[:, None] * vectors.values, rows, count)))


def token_loss(table, w, ids, y):
    hidden = tf.tanh(
        look_up(table, ids).flat_values @ w + tf.gather(tf.one_hot(y, 3, dtype=w.dtype), ids.value_rowids())
    )
    return mean(entropy(ids.flat_values % 3, hidden))


def weighted_tokens(table, w, ids, x):
    losses = entropy(ids.flat_values % 3, look_up(table, ids).flat_values @ w)
    weights = tf.gather(x[:, 0] ** 2, ids.value_rowids())
    return total(losses * weights) / total(weights)


def two_towers(table, w, ids, others, y):
    user, item = (tf.reduce_sum(look_up(table, each), 1) for each in (ids, others))
    return mean(entropy(y, user @ w * item))


LSTM = keras.layers.LSTM(2, dtype="float64")
LSTM.build((None, None, 3))


def recurrent(vectors, y):
    dense = vectors.to_tensor()
    return LSTM(dense, mask=tf.sequence_mask(vectors.row_lengths(), tf.shape(dense)[1]))


def penalty(table, w, ids, y):
    vectors = look_up(table, ids)
    with tf.GradientTape() as tape:
        tape.watch(vectors.flat_values)
        out = total(tf.tanh(vectors.with_flat_values(vectors.flat_values @ w)).to_tensor() ** 2)
    return mean(tape.gradient(out, vectors.flat_values) ** 2) + mean(tf.cast(y, w.dtype))


OWN = {  # name: a function, its batch, and what is communicated inside: gathered and reduced tensors
    "sum of each sample": (
        with_gradient(lambda t, w, ids, y: mean(entropy(y, total(look_up(t, ids), 1) @ w))),
        IDS,
        Y,
    ),
    "mean of each sample": (
        lambda v: tf.math.multiply_no_nan(mean(v, 1), tf.cast(v.row_lengths() > 0, v.dtype)[:, None]),
        VECTORS,
    ),
    "largest and least": (
        lambda v: [tf.maximum(tf.reduce_max(v, 1), -9.0), tf.minimum(tf.reduce_min(v, 1), 9.0)],
        VECTORS,
    ),
    "gradient of the largest": (
        with_gradient(
            lambda t, w, ids, y: mean(entropy(y, tf.maximum(tf.reduce_max(look_up(t, ids), 1), -9.0) @ w))
        ),
        IDS,
        Y,
    ),
    "lengths": (
        lambda v, x: [v.row_lengths(), x / tf.cast(v.row_lengths() + 1, x.dtype)[:, None]],
        VECTORS,
        X,
    ),
    "number of samples": (
        lambda v: [v.nrows(), tf.cast(v.nrows(), v.dtype) * mean(tf.reduce_sum(v, 1))],
        VECTORS,
    ),
    "number of values": (lambda v: v.row_splits[-1] + tf.cast(tf.size(v.flat_values), tf.int64), VECTORS),
    "mean of all values": (with_gradient(lambda t, w, ids: mean(look_up(t, ids).flat_values @ w)), IDS),
    "mean of a ragged tensor": (lambda v: [mean(v), tf.reduce_max(v), total(total(v, 2), 1)], VECTORS),
    "elementwise": (lambda v: total(tf.nn.relu(v * 2.0 + 1.0) / (1.0 + v * v), 1), VECTORS),
    "cast": (lambda ids: total(tf.cast(ids, tf.float64), 1), IDS),
    "mapped": (
        with_gradient(lambda t, w, v: total(total(tf.ragged.map_flat_values(tf.matmul, v, w), 1) ** 2)),
        VECTORS,
    ),
    "attention pooling": (with_gradient(attention_pooling), IDS, Y),
    "loss of tokens": (with_gradient(token_loss), IDS, Y),
    "weighted tokens": (with_gradient(weighted_tokens), IDS, X),
    "two towers": (with_gradient(two_towers), IDS, OTHERS, Y),
    "padded": (with_gradient(padded), IDS, Y),
    "padded to a length": (
        with_gradient(lambda t, w, ids: mean(tf.tanh(look_up(t, ids).to_tensor(shape=[None, 5, 3]) @ w))),
        IDS,
    ),
    "cut to a length": (
        with_gradient(lambda t, w, ids: mean(tf.tanh(look_up(t, ids).to_tensor(shape=[None, 2, 3]) @ w))),
        IDS,
    ),
    "padded with a number": (lambda ids: ids.to_tensor(default_value=-1), IDS),
    "recurrent": (recurrent, VECTORS, Y),
    "gradient penalty": (with_gradient(penalty), IDS, Y),
    "joined features": (
        lambda v, n: total(tf.concat([v.flat_values, tf.sin(v.flat_values)], 1) ** 2),
        VECTORS,
        X,
    ),
    "variance": (
        lambda v: tf.where(v.row_lengths()[:, None] > 0, tf.math.reduce_variance(v, 1), 0.0),
        VECTORS,
    ),
    "numbers": (lambda v: [total(v, 1), v.to_tensor()], NUMBERS),
    "in a branch": (lambda v, x: tf.cond(tf.shape(x)[0] > 3, lambda: total(v, 1) * x, lambda: x), VECTORS, X),
}
GATHERED = {
    "cut": lambda v: total(v[:, :2], 1),
    "last": lambda v: v[:, -1:].to_tensor(),
    "reversed": lambda v: tf.reverse(v, [1]).to_tensor(),
    "joined": lambda v: total(tf.concat([v, v * 2.0], 1), 1),
    "offsets": lambda v: [v.row_splits, v.row_starts(), v.row_limits(), v.value_rowids()],
    "arithmetic on offsets": lambda v: [
        v.row_splits * 2,
        -v.row_splits,
        tf.zeros_like(v.row_splits),
        v.row_starts() + 1,
    ],
    "values": lambda v: [v.flat_values, tf.cumsum(v.flat_values)],
    "sparse": lambda v: tf.sparse.to_dense(v.with_values(v.values[:, 0]).to_sparse()),
    "first axis": lambda v: total(v, 0),
    "offsets in a branch": lambda v: tf.cond(mean(v) > 0, lambda: v.row_starts() + 1, lambda: v.row_limits()),
    "offsets out of a branch": lambda v: (
        tf.cond(v.nrows() > 3, lambda: tf.identity(v.row_starts()), lambda: tf.identity(v.row_starts())) + 1
    ),
    "in a loop": lambda v: tf.while_loop(
        lambda i, z: i < 3, lambda i, z: (i + 1, z + total(v, 1)), [0, tf.zeros([7, 3], tf.float64)]
    )[1],
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.short("lengths", "number of values", "padded with a number", "joined features")
def test_step_on_ragged_values_gathers_nothing_and_matches_the_whole(name):
    fn, *batch = OWN[name]
    parts = Parts(fn, *batch).check()
    assert parts.communicated[0] == 0, parts.gathers


@pytest.mark.short("gradient penalty")
@pytest.mark.parametrize("name", sorted({*OWN} - {"recurrent"}))  # which needs a word on one device, too
def test_batch_without_values_or_with_them_in_one_sample_matches_the_whole(name):
    fn, *batch = OWN[name]
    parts = Parts(fn, *batch)
    for lengths in ([0] * 7, [0, 0, 0, 0, 0, 5, 0], [1] * 7):
        some = [_with_lengths(each, lengths) if isinstance(each, tf.RaggedTensor) else each for each in batch]
        parts.batch = some
        parts.check(parts=UNEVEN[1:])


def _with_lengths(ragged, lengths):
    return tf.RaggedTensor.from_row_lengths(ragged.flat_values[: sum(lengths)], lengths)


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.short(
    "cut", "arithmetic on offsets", "values", "sparse", "offsets in a branch", "offsets out of a branch"
)
def test_operation_without_a_rule_for_ragged_values_matches_the_whole(name):
    Parts(GATHERED[name], VECTORS).check()
