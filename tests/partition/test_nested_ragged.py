"""Steps on arrays with two ragged dimensions: replicas compute the values of their own samples, and match the whole."""

import numpy as np
import pytest
import tensorflow as tf
from partition_in_parts import UNEVEN, Parts

from .test_ragged import IDS, VECTORS, Y, entropy, look_up, mean, total, with_gradient

_R = np.random.default_rng(7)
OUTER = [2, 0, 3, 1, 0, 4, 2]
INNER = [1, 3, 0, 2, 0, 1, 2, 3, 0, 2, 1, 1]


def nested(values, inner=INNER, outer=OUTER):
    """Values that belong to inner ones, such as the words of sentences, of samples."""
    return tf.RaggedTensor.from_row_lengths(
        tf.RaggedTensor.from_row_lengths(values[: sum(inner)], inner[: sum(outer)]), outer
    )


WORDS = nested(_R.integers(0, 6, sum(INNER)))
NUMBERS = nested(_R.normal(size=sum(INNER)))


def softmax_of_sentences(table, w, words):
    """A softmax over the words of each sentence."""
    vectors, sentences, count = (
        look_up(table, words).flat_values,
        words.values.value_rowids(),
        words.values.nrows(),
    )
    powers = tf.exp(vectors @ w[:, :1])
    sums = tf.math.unsorted_segment_sum(powers, sentences, count)
    return total(
        tf.math.unsorted_segment_sum(powers * vectors / tf.gather(sums, sentences), sentences, count) ** 2
    )


def class_of_words(table, w, words, y):
    """A loss of each word, whose class is that of its sample."""
    classes = tf.gather(tf.gather(y, words.value_rowids()), words.values.value_rowids())
    return mean(entropy(classes, look_up(table, words).flat_values @ w))


def two_sums(vectors):
    return total(total(vectors, 2), 1)


OWN = {
    "sums": (with_gradient(lambda t, w, i, y: mean(entropy(y, two_sums(look_up(t, i)) @ w))), WORDS, Y),
    "sums at once": (with_gradient(lambda t, w, i: total(total(look_up(t, i), [1, 2]) ** 2)), WORDS),
    "means of words": (
        with_gradient(
            lambda t, w, i: total(
                tf.math.multiply_no_nan(mean(look_up(t, i), 2).flat_values, _has_words(i)) @ w
            )
        ),
        WORDS,
    ),
    "largest of words": (
        with_gradient(lambda t, w, i: total(tf.nn.relu(tf.reduce_max(look_up(t, i), 2).flat_values) @ w)),
        WORDS,
    ),
    "loss of words": (
        with_gradient(lambda t, w, i: mean(entropy(i.flat_values % 3, look_up(t, i).flat_values @ w))),
        WORDS,
    ),
    "classes of samples": (with_gradient(class_of_words), WORDS, Y),
    "softmax of sentences": (with_gradient(softmax_of_sentences), WORDS),
    "padded": (
        with_gradient(lambda t, w, i: total(total(look_up(t, i).to_tensor() @ w, [1, 2]) ** 2)),
        WORDS,
    ),
    "padded to lengths": (
        with_gradient(lambda t, w, i: total(tf.tanh(look_up(t, i).to_tensor(shape=[None, 3, 2, 3]) @ w))),
        WORDS,
    ),
    "padded sentences": (with_gradient(lambda t, w, i: total(look_up(t, i).values.to_tensor() @ w)), WORDS),
    "mapped": (
        with_gradient(
            lambda t, w, i: total(two_sums(tf.ragged.map_flat_values(tf.matmul, look_up(t, i), w)))
        ),
        WORDS,
    ),
    "lengths": (
        lambda i: [i.row_lengths(), i.values.row_lengths(), tf.reduce_max(i.values.row_lengths())],
        WORDS,
    ),
    "numbers of values": (lambda i: [i.nrows(), i.values.nrows(), tf.size(i.flat_values)], WORDS),
    "two arrays": (lambda i, n: total(n.flat_values * tf.cast(i.flat_values, n.dtype)), WORDS, NUMBERS),
    "with one dimension": (
        with_gradient(
            lambda t, w, i, j, y: mean(entropy(y, two_sums(look_up(t, i)) + total(look_up(t, j), 1)))
        ),
        WORDS,
        IDS,
        Y,
    ),
}
GATHERED = {
    "made one": (lambda i: total(i.merge_dims(1, 2), 1), WORDS),
    "offsets": (
        lambda i: [i.row_splits, i.values.row_splits, i.values.row_splits * 2, i.values.row_starts()],
        WORDS,
    ),
    "numbers of sentences": (lambda i: [i.values.value_rowids(), i.value_rowids()], WORDS),
    "cut": (lambda i: [two_sums(i[:, :1]), two_sums(i[:, :, :1])], WORDS),
    "last": (lambda i: i[:, -1:].to_tensor(), WORDS),
    "multiplied": (lambda n: two_sums(n * n), NUMBERS),
    "numbers of offsets": (
        lambda i: [
            count := tf.shape(i.values.row_splits),
            -count,
            count - 2,
            tf.reduce_prod(count),
            tf.size(count),
        ],
        WORDS,
    ),
    "as many as offsets": (
        lambda i: [
            tf.zeros(tf.shape(i.values.row_splits)),
            tf.broadcast_to(2.0, tf.shape(i.values.row_splits)),
        ],
        WORDS,
    ),
    "number of offsets in a branch": (
        lambda i: (
            tf.cond(mean(tf.cast(i.flat_values, "float32")) > 0, *2 * [lambda: tf.shape(i.values.row_splits)])
            * 3
        ),
        WORDS,
    ),
    "positions and 0": (
        lambda i: [
            tf.maximum(i.values.row_starts(), 0),
            tf.maximum(i.values.row_starts(), 2),
            tf.maximum(i.values.row_starts() - 3, 0),
            i.values.row_starts() - 2 >= 0,
            tf.ones_like(i.values.value_rowids()),
        ],
        WORDS,
    ),
    "sentences of others": (lambda v, i: tf.gather(v.values, i.values.value_rowids()), VECTORS, WORDS),
}


def _has_words(words):
    return tf.cast(words.values.row_lengths() > 0, tf.float64)[:, None]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.short("numbers of values")
def test_step_on_nested_values_gathers_nothing_and_matches_the_whole(name):
    fn, *batch = OWN[name]
    parts = Parts(fn, *batch).check()
    assert parts.communicated[0] == 0, parts.gathers


@pytest.mark.long
@pytest.mark.parametrize("name", OWN)
def test_batch_without_inner_or_outer_values_matches_the_whole(name):
    fn, *batch = OWN[name]
    parts = Parts(fn, *batch)
    for outer, inner in (([0] * 7, []), ([0, 0, 3, 0, 0, 0, 0], [0, 0, 0]), ([1] * 7, [0, 0, 4, 0, 0, 0, 1])):
        parts.batch = [nested(each.flat_values, inner, outer) if is_nested(each) else each for each in batch]
        parts.check(parts=UNEVEN[1:])


def is_nested(each):
    return isinstance(each, tf.RaggedTensor) and each.ragged_rank == 2


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.short("made one", "cut", "numbers of offsets")
def test_operation_without_a_rule_for_nested_values_matches_the_whole(name):
    fn, *batch = GATHERED[name]
    Parts(fn, *batch).check()
