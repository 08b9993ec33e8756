"""Tables with divided rows, and softmax over divided classes: by parts and sums, and never gathered."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from mesh_in_parts import MeshParts
from partition_in_parts import Parts

from unisono.compat.tensorflow_graphs.one_device import find_distributed_variable
from unisono.trainer.partition.labels import REPLICATED
from unisono.trainer.partition.partition_graph import partition_graph
from unisono.trainer.partition.program import Convert, Copy

R = np.random.default_rng(3)
TOKENS, NEXT = R.integers(0, 8, (7, 3)).astype("int32"), R.integers(0, 8, (7, 3))
STATES, TABLE = R.normal(size=(7, 3, 4)), R.normal(size=(8, 4))
HEAD = TABLE.T.copy()
CLASSES, PARTS, EPSILON = 8, 2, 1e-7
total, mean = tf.reduce_sum, tf.reduce_mean


def with_gradient(loss_of):
    def fn(*tensors):
        weight = tensors[-1]
        with tf.GradientTape() as tape:
            tape.watch(weight)
            loss = loss_of(*tensors)
        return [loss, tf.convert_to_tensor(tape.gradient(loss, weight))]

    return fn


def sparse(logits, classes):
    flat = tf.reshape(logits, [-1, CLASSES])
    return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(classes, [-1]), flat))


def dense(logits, classes):
    codes = tf.one_hot(tf.reshape(classes, [-1]), CLASSES, dtype=logits.dtype) * 0.9 + 0.1 / CLASSES
    return mean(tf.nn.softmax_cross_entropy_with_logits(codes, tf.reshape(logits, [-1, CLASSES])))


def of_probabilities(logits, classes):
    shares = tf.clip_by_value(tf.nn.softmax(logits), EPSILON, 1 - EPSILON)
    return sparse(tf.math.log(shares), classes)  # as Keras does


def among_best(logits, classes):
    logits = tf.cast(tf.reshape(logits, [-1, CLASSES]), tf.float32)
    return mean(tf.cast(tf.math.in_top_k(tf.reshape(classes, [-1]), logits, 3), tf.float64))


@tf.custom_gradient
def softmax_of_float64(logits):
    """With the gradient that TensorFlow has from 2.22 on."""
    shares = tf.nn.softmax(logits)

    def gradient(given):
        found = (given - tf.reduce_sum(given * shares, -1, keepdims=True)) * shares
        largest = tf.one_hot(tf.argmax(shares, -1), tf.shape(shares)[-1], dtype=shares.dtype)
        return found - tf.reduce_sum(found, -1, keepdims=True) * tf.stop_gradient(largest)

    return shares, gradient


HEADS = {  # each exchanges a few numbers for each token
    "sparse": lambda x, y, w: sparse(x @ w, y),
    "dense": lambda x, y, w: dense(x @ w, y),
    "log-softmax": lambda x, y, w: mean(tf.nn.log_softmax(x @ w) ** 2),
    "probabilities": lambda x, y, w: of_probabilities(x @ w, y),
    "squared shares": lambda x, y, w: mean(tf.nn.softmax(x @ w) ** 2),
    "shares without the largest": lambda x, y, w: mean(softmax_of_float64(x @ w) ** 2),
    "largest": lambda x, y, w: mean(tf.cast(tf.argmax(x @ w, -1) == y, w.dtype)) + mean((x @ w) ** 2),
    "three largest": lambda x, y, w: among_best(x @ w, y) + mean((x @ w) ** 2),
    "log-sum-exp": lambda x, y, w: mean(tf.reduce_logsumexp(x @ w, -1)),
}


def check_sizes(parts, most):
    """Inside, exchanges along the model have at most `most` numbers a sample, and no result has all the classes."""
    found = [0]
    program = partition_graph(
        parts.graph, len(parts.batch), [REPLICATED, parts.weights[0].labels],
        lambda handle: getattr(find_distributed_variable(handle), "labels", None), mesh=parts.program.mesh,
    )  # fmt: skip
    for node in program.nodes:
        if isinstance(node, Convert) and node.axis and node.cause is not None and program.communicates(node):
            assert program.labels_around(node)[0].kind.startswith("partial")
            found.append(math.prod(n for n in program.values[node.source].shape if isinstance(n, int)))
        if isinstance(node, Copy) and program.find_fixed(node) is None:
            whole = [n for n in node.outputs if CLASSES in (program.local_shape(n) or ())]
            assert not whole, node.op.name
    assert max(found) <= most


@pytest.mark.short("4-dense", "4-largest")
@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("count", [2, 4])
def test_head_with_divided_classes_is_never_whole(name, count):
    parts = MeshParts(with_gradient(HEADS[name]), [STATES, NEXT], [(HEAD, 1)], count)
    parts.check([(4, 3), (6, 0, 1)])
    check_sizes(parts, STATES[0].size)


def test_labels_among_the_largest_of_odd_scores_are_those_of_one_device():
    scores = R.integers(0, 3, (7, CLASSES)).astype("float32")  # many are equal
    scores[1, 2], scores[2, 5], scores[3, 0] = np.nan, np.inf, -np.inf
    labels = np.array([0, 2, 3, 1, -1, CLASSES, 7], "int32")

    def fn(x, y, w):
        return [tf.math.in_top_k(y, x + w, k) for k in (0, 1, 3, 20)]

    parts = MeshParts(fn, [scores, labels], [(np.zeros((1, CLASSES), "float32"), 1)])
    parts.check([(4, 3), (6, 0, 1)])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.short("True")
def test_samples_among_the_nearest_of_a_batch_match_one_device(transposed):
    """The classes are samples, and so along the axis of the batch."""

    def fn(x):
        scores = tf.cast(tf.matmul(x, x * 0.5 + tf.reverse(x, [0]), transpose_b=True), tf.float32)
        scores = tf.transpose(scores) if transposed else scores
        return tf.math.in_top_k(tf.range(tf.shape(x)[0]), scores, 3)

    Parts(fn, STATES[:, 0]).check()


LOOKUPS = {
    "rows": lambda t, w: mean(tf.sin(tf.gather(w, t))),
    "rows in two tables": lambda t, w: mean(tf.sin(tf.gather(w, t) + tf.gather(w, (t + 1) % 8))),
    "tied": lambda t, w: sparse(tf.gather(w, t) @ tf.transpose(w), t),
    "cast": lambda t, w: tf.cast(mean(tf.gather(tf.cast(w, tf.float32), t) ** 2), w.dtype),
}


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.long
def test_lookup_in_divided_rows_is_never_whole(name, count):
    parts = MeshParts(with_gradient(LOOKUPS[name]), [TOKENS], [(TABLE, 0)], count)
    parts.check([(4, 3), (6, 0, 1)], tolerance=1e-6 if name == "cast" else 1e-12)
    check_sizes(parts, STATES[0].size)


@pytest.mark.long
def test_lookups_along_other_axes_of_a_divided_table_match_one_device():
    def fn(t, x, w):
        of_rows = tf.gather(tf.transpose(w)[None], t, axis=2)
        of_samples = tf.gather(x @ tf.transpose(w), t[:, :2], axis=2, batch_dims=1)
        return [total(of_rows**2), total(of_samples**2)]

    parts = MeshParts(fn, [TOKENS, STATES], [(TABLE, 0)])
    parts.check([(4, 3), (6, 0, 1)])


@pytest.mark.parametrize("layout", [(1, 0), (0, 1), (None, 1)])
@pytest.mark.long
def test_tied_table_divided_along_columns_or_over_the_batch_too_matches_one_device(layout):
    fn = with_gradient(LOOKUPS["tied"])
    MeshParts(fn, [TOKENS], [(TABLE, layout)], again=True).check([(4, 3), (7, 0)])


@pytest.mark.parametrize("wrong", [-1, CLASSES])
@pytest.mark.short("8")
def test_number_outside_of_a_divided_table_is_an_error_as_on_one_device(wrong):
    tokens = TOKENS.copy()
    tokens[0, 0] = wrong
    for fn, batch, weight, axis in (
        (lambda t, w: tf.gather(w, t), [tokens], TABLE, 0),
        (lambda x, t, w: sparse(x @ w, t), [STATES, tokens], HEAD, 1),
    ):
        parts = MeshParts(fn, batch, [(weight, axis)])
        with pytest.raises(tf.errors.InvalidArgumentError):
            parts.on_one_device()
        with pytest.raises(tf.errors.InvalidArgumentError):
            parts.on_replicas((4, 3))
