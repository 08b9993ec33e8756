"""Sizes as symbols: their arithmetic, and that what is proved of them holds at several batch sizes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from partition_in_parts import Parts

from unisono.trainer.partition.sizes.size import (
    Length,
    Samples,
    Size,
    at_most,
    broadcast_extent,
    divide,
    equal,
    is_divided,
    largest,
    per_sample,
    quotient,
    smallest,
)
from unisono.trainer.partition.sizes.size_arrays import broadcast_axes

BATCHES = [(n, length) for n in (1, 2, 3, 4, 5, 7, 8, 64) for length in (0, 1, 2, 9)]
n, m = (Size.of(Samples()) for _ in range(2))
t = Size.of(Length())
SIZES = (0, 1, 3, -2, n, 2 * n, n - 1, 3 - n, n * n, n * n + n, 4 * n + 6, n - n + 2)
LENGTHS = (t, 8 * t, n * t, 2 * n * t, t * t, n * t + n, t + 1, t - n, n - t - 1)


def _at(size, batch):
    if not isinstance(size, Size):
        return size
    samples, length = batch
    numbers = [
        [length if isinstance(each, Length) else samples for each in product] for product in size.terms
    ]
    return sum(factor * math.prod(each) for factor, each in zip(size.terms.values(), numbers))


@pytest.mark.parametrize(("one", "other"), itertools.product(SIZES + LENGTHS, SIZES + LENGTHS))
def test_what_is_known_of_two_sizes_holds_for_every_batch(one, other):
    found = {
        "sum": (one + other, lambda a, b: a + b),
        "difference": (one - other, lambda a, b: a - b),
        "product": (one * other, lambda a, b: a * b),
        "largest": (largest(one, other), max),
        "smallest": (smallest(one, other), min),
        "at most": (at_most(one, other), lambda a, b: a <= b),
        "equal": (equal(one, other), lambda a, b: a == b),
        "quotient": (divide(one, other)[0], lambda a, b: a // b),
        "rest": (divide(one, other)[1], lambda a, b: a % b),
        "exact quotient": (quotient(one, other), lambda a, b: a / b),
    }
    for name, (size, expected) in found.items():
        for batch in BATCHES if size is not None else ():
            if name == "exact quotient" and _at(other, batch) == 0:
                continue  # the divisor is a number of elements, from which TensorFlow infers an extent
            assert _at(size, batch) == expected(_at(one, batch), _at(other, batch)), name


def test_sizes_are_known_where_they_can_be():
    assert at_most(1, n) and at_most(n, 2 * n) and at_most(n - 1, n) and at_most(0, n - 1)
    assert at_most(n, 3) is None and equal(n, 3) is None and largest(n, 3) is None
    assert largest(n, 1) == n and smallest(n, 1) == 1 and quotient(2 * n * n, 2 * n) == n
    assert divide(4 * n + 3, 4) == (n, 3) and divide(n, 2) == (None, None)
    assert per_sample(3 * n) == 3 and per_sample(n + 1) is None and per_sample(n * n) is None
    assert is_divided(2 * n, 2) and is_divided(n * n) and not is_divided(n, 2) and not is_divided(n + 1)
    assert equal(n, m) is None and not is_divided(n + m)


def test_lengths_are_no_numbers_of_samples():
    assert at_most(0, t) and at_most(1, t) is None and equal(t, 0) is None and at_most(n, n * t) is None
    assert per_sample(t) is None and per_sample(n * t) is None and is_divided(n * t) and not is_divided(8 * t)
    assert quotient(8 * n * t, 8 * t) == n and divide(8 * n * t, 8 * t) == (None, None)
    assert (n * t).at(3) is None and broadcast_extent(t, Size.of(Length())) is None
    assert broadcast_extent(t, n) is None and broadcast_extent(t, 1) == t and broadcast_extent(t, 4) == 4


def test_numbers_of_samples_that_are_combined_become_one():
    one, other = (Size.of(Samples()) for _ in range(2))
    sizes = {one + other: "sum"}
    assert broadcast_extent(2 * one, 3 * other) is None and one != other
    assert broadcast_extent(one, other) == one == other
    assert sizes[2 * one] == "sum" and str(one + other) == "2*n"


@pytest.mark.parametrize("shapes", [((1, 3), (4, 3)), ((3,), (2, 3)), ((1, 1), (1, 1)), ((2, 1, 5), (4, 1))])
def test_axes_of_a_broadcast_gradient_are_those_of_tensorflow(shapes):
    expected = tf.raw_ops.BroadcastGradientArgs(s0=shapes[0], s1=shapes[1])
    found = [[axis for axis, summed in enumerate(each) if summed] for each in zip(*broadcast_axes(shapes))]
    assert found == [axes.numpy().tolist() for axes in expected]


def test_mask_of_a_similarity_matrix_is_labelled_without_its_size():
    def fn(x):
        similarity = tf.matmul(x, x, transpose_b=True)
        return tf.reduce_mean(tf.boolean_mask(similarity, ~tf.cast(tf.eye(tf.shape(x)[0]), tf.bool)) ** 2)

    Parts(fn, np.random.default_rng(0).normal(size=(7, 4))).check()


@pytest.mark.parametrize(("places", "more"), [(2, 2), (-3, 3), ((1, 2), 1), ((-2, -1), 1), ((-1, 2), 0)])
def test_size_of_matrices_is_right_where_their_diagonals_depend_on_the_batch(places, more):
    """TensorFlow's own graph for a batch of unknown size says otherwise, so a number is expected."""

    def fn(x):
        diagonals = x[:, 0] if isinstance(places, int) else tf.transpose(x[:, : places[1] - places[0] + 1])
        return tf.shape(tf.linalg.diag(diagonals, k=places))

    parts = Parts(fn, np.ones((5, 4)))
    for known in (True, False):
        assert np.all(np.array(parts.on_replicas((2, 0, 3), known)) == 5 + more)


def test_known_numbers_keep_the_axes_that_a_squeeze_leaves():
    x = np.random.default_rng().normal(size=(7, 3))

    def fn(x):
        place, pair = tf.squeeze(tf.constant([[2]]), -1), tf.squeeze(tf.constant([[[1, 2]]]), [0])
        return tf.gather(x, place), tf.shape(x)[None, place[0] - 1] * pair

    Parts(fn, x).check()


def test_parts_of_a_split_have_sizes_of_the_batch():
    def fn(x):
        samples = tf.shape(x)[0]
        both = tf.concat([x, 2 * x, x * x], 0)
        return *tf.split(both, [2 * samples, samples]), *tf.split(tf.transpose(both), [samples, -1], 1)

    parts = Parts(fn, np.random.default_rng().normal(size=(7, 3)))
    parts.check()
    assert not parts.gathers


@pytest.mark.parametrize("extent", ["open", "known"])
def test_shape_of_elements_is_that_of_one_device(extent):
    def fn(x):
        shape = tf.stack([-1 if extent == "open" else tf.shape(x)[0], 3])
        held = tf.raw_ops.TensorListFromTensor(tensor=tf.stack([x, 2 * x]), element_shape=shape)
        found = tf.raw_ops.TensorListElementShape(input_handle=held, shape_type=tf.int32)
        return found, found[0], found[1], tf.reduce_prod(found), found[:1]

    Parts(fn, np.ones((7, 3))).check()
