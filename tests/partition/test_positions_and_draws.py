"""Positions that are derived from where numbers come from, and draws that replicas share, in every context."""

import numpy as np
import pytest
import tensorflow as tf
from partition_in_parts import UNEVEN, NotPartitioned, Parts

X = np.random.default_rng(3).normal(size=(7, 4))
Y = np.array([0, 2, 1, 0, 2, 2, 1])
LARGE = np.random.default_rng(4).normal(size=(300, 2))


def _sum_segments(ids, x, count):
    return tf.math.unsorted_segment_sum(x[:, :3] ** 2, ids, count)


def _count(x):
    return tf.range(tf.shape(x)[0])


PROVEN = {  # positions of each sample's own entries: one tensor is returned, nothing is gathered inside
    "multiples and a rest": lambda x, y: _sum_segments(y % 3 + 3 * _count(x), x, 3 * tf.shape(x)[0]),
    "a rest that a lookup bounds": lambda x, y: (
        found := tf.gather(x, y, batch_dims=1),
        [found, _sum_segments(y + 4 * _count(x), x, 4 * tf.shape(x)[0])],
    )[1],
    "in matrices": lambda x, y: tf.gather(x, tf.stack([y, y], 1), batch_dims=1),
    "in two steps": lambda x, y: _sum_segments(2 * _count(x) + _count(x), x, 3 * tf.shape(x)[0]),
}
NOT_PROVEN = {  # gathered, or wrong
    "cast to bool": lambda x, y: _sum_segments(
        y % 3 + 3 * tf.cast(tf.cast(_count(x), tf.bool), tf.int32), x, 3 * tf.shape(x)[0]
    ),
    "a rest without bounds": lambda x, y: _sum_segments(
        tf.minimum(y + 2 * _count(x), 13), x, 2 * tf.shape(x)[0]
    ),
    "a rest above the step": lambda x, y: _sum_segments(y % 3 + 2 * _count(x), x, 2 * tf.shape(x)[0]),
    "a bound of another lookup": lambda x, y: (
        found := tf.gather(x, y, batch_dims=1),
        [found, _sum_segments(tf.minimum(y + 2 * _count(x), 13), x, 2 * tf.shape(x)[0])],
    )[1],
}


@pytest.mark.parametrize("name", PROVEN)
def test_positions_of_own_entries_stay_on_their_replica(name):
    parts = Parts(PROVEN[name], X, Y.astype("int32")).check()
    assert parts.communicated[0] == 0


@pytest.mark.parametrize("name", NOT_PROVEN)
def test_numbers_that_are_not_proven_to_be_positions_are_gathered(name):
    assert Parts(NOT_PROVEN[name], X, Y.astype("int32")).check().communicated[0] > 0


def test_positions_cast_to_8_bits_are_gathered():
    def fn(x):
        ids = tf.cast(tf.cast(_count(x), tf.uint8), tf.int32)
        return tf.math.unsorted_segment_sum(x, ids, tf.shape(x)[0])

    Parts(fn, LARGE).check(parts=[(100, 200), (1, 299)])


def test_choices_of_a_number_and_of_its_cast_are_two():
    def fn(x, w):
        first, second = (tf.gather(x, tf.where(each)[:, 0]) for each in (w, tf.cast(w, tf.int32)))
        return tf.reduce_sum(first) * tf.reduce_sum(second), tf.shape(first)[0] - tf.shape(second)[0]

    parts = Parts(fn, X, np.array([0.5, 1.0, 0.0, 2.0, 0.5, 0.0, 0.25])).check()
    assert len({value.label.chosen[0] for value in parts.program.values if value.label.chosen}) == 2


def _shuffled(x):
    return tf.gather(x, tf.random.shuffle(_count(x)))


def _repeat(x, body):
    return tf.while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, body(z)), [0, x])[1]


SHARED = {  # a permutation preserves a sum; a shared number is the same everywhere
    "shuffle": lambda x: tf.reduce_sum(_shuffled(x), 0) - tf.reduce_sum(x, 0),
    "shuffle of samples": lambda x: tf.reduce_sum(tf.random.shuffle(x), 0) - tf.reduce_sum(x, 0),
    "shuffle of strings": lambda x: (
        tf.reduce_sum(tf.strings.to_number(tf.random.shuffle(tf.as_string(x[:, 0]))))
        - tf.reduce_sum(tf.strings.to_number(tf.as_string(x[:, 0])))
    ),
    "number": lambda x: (x - x) + (n := tf.random.normal([], dtype=x.dtype)) - n,
}


@pytest.fixture
def without_seed():
    """Draw without the seed that the tests' configuration sets for all operations."""
    tf.random.set_seed(None)
    yield
    tf.random.set_seed(1)


@pytest.mark.usefixtures("without_seed")
@pytest.mark.parametrize("name", SHARED)
def test_draw_without_a_seed_is_one_for_all_replicas(name):
    parts = Parts(SHARED[name], X)
    for samples in UNEVEN:
        for copy in parts.on_replicas(samples):
            np.testing.assert_allclose(copy[0], 0, atol=1e-5 if "strings" in name else 1e-12)


def _in_branch(x, branch):
    return tf.cond(tf.reduce_sum(x) < 1e9, lambda: branch(x), lambda: x)


UNSEEDED = {
    "shuffle in a branch": lambda x: _in_branch(x, _shuffled),
    "shuffle in a loop": lambda x: _repeat(x, _shuffled),
    "number in a loop next to a mean of the batch": lambda x: _repeat(
        x, lambda z: z + tf.reduce_mean(z, 0) * tf.random.normal([], dtype=z.dtype)
    ),
    "number in a branch of a loop": lambda x: _repeat(
        x, lambda z: _in_branch(z, lambda t: t + tf.reduce_mean(t) * tf.random.uniform([], dtype=t.dtype))
    ),
}


@pytest.mark.usefixtures("without_seed")
@pytest.mark.parametrize("name", UNSEEDED)
def test_draw_that_a_gathered_body_must_share_is_refused_with_a_way_out(name):
    with pytest.raises(
        NotPartitioned, match="draws random numbers that all replicas share in a branch or a loop"
    ):
        Parts(UNSEEDED[name], X)


def test_draw_with_a_seed_in_a_gathered_branch_is_that_of_one_device():
    def fn(x):
        return _in_branch(x, lambda z: tf.gather(z, tf.random.shuffle(_count(z), seed=5)))

    Parts(fn, X).check(parts=UNEVEN[:1])  # a kernel's next numbers are others


def test_draw_with_a_seed_in_a_gathered_loop_is_refused_because_turns_run_in_any_order():
    with pytest.raises(
        NotPartitioned, match="draws random numbers that all replicas share in a branch or a loop"
    ):
        Parts(lambda x: _repeat(x, lambda z: tf.gather(z, tf.random.shuffle(_count(z), seed=5))), X)


@pytest.mark.parametrize("wrap", [lambda x, fn: fn(x), _in_branch, _repeat], ids=["top", "branch", "loop"])
def test_stateless_draw_is_one_for_all_replicas(wrap):
    def draw(z):
        number = tf.random.stateless_normal([], tf.shape(z) * [1, 2], dtype=z.dtype)
        return z + tf.reduce_mean(z, 0) * number

    Parts(lambda x: wrap(x, draw), X).check()


SEEDS = {  # of each draw: one tensor, or equal ones
    "one tensor": lambda x, drawn: drawn,
    "computed twice": lambda x, drawn: tf.stack([drawn[0], 1]),
    "computed twice from a size": lambda x, drawn: tf.stack([tf.shape(x)[0] + drawn[1], 1]),
}


@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.short("computed twice", "one tensor")
def test_seed_of_two_sizes_draws_the_same_numbers(name):
    def fn(x):
        n, drawn = tf.shape(x)[0], tf.random.uniform([2], maxval=99, dtype=tf.int32)
        few, many, again = (
            tf.random.stateless_uniform([k, 3], SEEDS[name](x, drawn), dtype=x.dtype) for k in (n, 2 * n, n)
        )
        return few - many[:n], again - few

    parts = Parts(fn, X)
    for samples in UNEVEN:
        for copy in parts.on_replicas(samples):
            assert not np.any(copy[0]) and not np.any(copy[1])
