"""Steps on sparse arrays: replicas compute the entries of their own samples, and match the whole batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from partition_in_parts import UNEVEN, Parts

_R = np.random.default_rng(6)
DENSE = _R.normal(size=(7, 4)) * _R.integers(0, 2, size=(7, 4))
DENSE[1] = 0  # a sample without entries
X = tf.sparse.from_dense(DENSE)
CUBES = tf.sparse.from_dense(_R.normal(size=(7, 3, 2)) * _R.integers(0, 2, size=(7, 3, 2)))
Y = _R.integers(0, 3, 7)
W = tf.constant(_R.normal(size=(4, 3)))
mean, total = tf.reduce_mean, tf.reduce_sum


def with_gradient(loss_of):
    """The loss, and its gradient with respect to `W`."""

    def fn(*batch):
        w = tf.identity(W)
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = loss_of(w, *batch)
        return [loss, tf.convert_to_tensor(tape.gradient(loss, w))]

    return fn


def entropy(y, logits):
    return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def of_values(x):
    """The gradient of the values of a sparse array."""
    with tf.GradientTape() as tape:
        values = tf.identity(x.values)
        tape.watch(values)
        loss = total(tf.tanh(tf.sparse.sparse_dense_matmul(x.with_values(values), W)) ** 2)
    return total(tape.gradient(loss, values) ** 2)


OWN = {
    "product of Keras": (with_gradient(lambda w, x, y: entropy(y, keras.ops.matmul(x, w))), X, Y),
    "filled": (lambda x: [(f := tf.sparse.fill_empty_rows(x, 2.0))[1], total(f[0].values ** 2),
        tf.math.segment_mean(f[0].values, f[0].indices[:, 0])], X),
    "product": (with_gradient(lambda w, x, y: entropy(y, tf.sparse.sparse_dense_matmul(x, w))), X, Y),
    "dense": (with_gradient(lambda w, x, y: entropy(y, tf.tanh(tf.sparse.to_dense(x)) @ w)), X, Y),
    "in order": (with_gradient(lambda w, x, y: entropy(y, tf.sparse.to_dense(tf.sparse.reorder(x)) @ w)), X, Y),
    "mapped": (with_gradient(lambda w, x, y: entropy(
        y, tf.sparse.sparse_dense_matmul(tf.sparse.map_values(tf.sin, x), w))), X, Y),
    "all entries": (lambda x: [mean(x.values), total(x.values), tf.shape(x.values), x.dense_shape], X),
    "samples of entries": (lambda x, y: tf.math.unsorted_segment_sum(
        x.values * tf.cast(tf.gather(y, x.indices[:, 0]), x.dtype), x.indices[:, 0], x.dense_shape[0]), X, Y),
    "gradient of entries": (of_values, X),
    "cubes": (lambda x: tf.sparse.to_dense(x) * 2.0, CUBES),
}  # fmt: skip
GATHERED = {
    "sums of sorted segments": lambda x: tf.math.segment_sum(x.values, x.indices[:, 0]),
    "filled places": lambda x: [(f := tf.sparse.fill_empty_rows(x, 2.0))[0].indices, f[0].values],
    "transposed": lambda x: tf.sparse.to_dense(tf.sparse.transpose(x)),
    "sums": lambda x: [tf.sparse.reduce_sum(x, 1), tf.sparse.reduce_sum(x, 0)],
    "places": lambda x: [x.indices, x.indices + 1, x.indices[:, 1], x.values],
    "softmax": lambda x: tf.sparse.to_dense(tf.sparse.softmax(x)),
    "scaled": lambda x: tf.sparse.to_dense(x.__mul__(tf.ones([7, 1], x.dtype) * 2.0)),
    "expanded": lambda x: tf.sparse.to_dense(tf.sparse.expand_dims(x, 1)),
    "slice": lambda x: tf.sparse.to_dense(tf.sparse.slice(x, [0, 1], [7, 2])),
    "the other product": lambda x: tf.sparse.sparse_dense_matmul(x, tf.eye(7, dtype=x.dtype), adjoint_a=True),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.short("samples of entries", "cubes")
def test_step_on_sparse_arrays_gathers_nothing_and_matches_the_whole(name):
    fn, *batch = OWN[name]
    parts = Parts(fn, *batch).check()
    assert parts.communicated[0] == 0, parts.gathers


@pytest.mark.parametrize("name", OWN)
@pytest.mark.long
def test_batch_without_entries_matches_the_whole(name):
    fn, x, *rest = OWN[name]
    parts = Parts(fn, x, *rest)
    for entries in (0, 1):
        parts.batch[0] = tf.SparseTensor(x.indices[-1:][:entries], x.values[-1:][:entries], x.dense_shape)
        parts.check(parts=UNEVEN[1:])


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.short(
    "sums of sorted segments", "filled places", "transposed", "scaled", "slice", "the other product"
)
def test_operation_without_a_rule_for_sparse_arrays_matches_the_whole(name):
    Parts(GATHERED[name], X).check()
