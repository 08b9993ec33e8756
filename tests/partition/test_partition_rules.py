"""Every rule of the partition pass: operations in uneven parts, also with a replica without samples, against the whole."""

from __future__ import annotations

import pytest
import tensorflow as tf
from partition_in_parts import Parts
from partition_programs import PROGRAMS, S, X

from unisono.trainer.partition.errors import NotPartitioned

FLOAT64, FLOAT32 = 1e-12, 1e-5  # sums are added in another order


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_in_uneven_parts_matches_the_whole(name):
    fn, *batch = PROGRAMS[name]
    single = name == "inference of batch normalization"
    Parts(fn, *batch).check(tolerance=FLOAT32 if single else FLOAT64)


@pytest.mark.parametrize(
    "name, collectives",
    [
        ("mean", 1),  # of the output
        ("cross-entropy", 2),
        ("attention", 2),
        ("loop", 2),
        ("batch jacobian", 4),
        ("ratio", 3),
        ("variance", 4),
        ("convolution", 3),
    ],
)
def test_no_collective_is_added_where_no_sample_needs_another(name, collectives):
    fn, *batch = PROGRAMS[name]
    assert Parts(fn, *batch).collectives == collectives


def test_draws_with_samples_differ_between_replicas_and_others_do_not():
    def drawn(x):
        return [
            tf.random.stateless_normal(tf.shape(x), [1, 2]) + 0.0 * x,
            tf.random.stateless_normal([4], [3, 4]),
        ]

    (noise, alike), *others = Parts(drawn, X.astype("float32")).on_replicas((3, 3, 1))
    assert len({tuple(row) for row in noise.tolist()}) == 7
    for each in others:
        assert (each[0] == noise).all() and (each[1] == alike).all()


def test_leaves_with_other_numbers_of_samples_are_not_taken_for_one_batch():
    def compared(x, s):
        return tf.reduce_mean(tf.concat([x, tf.reshape(s, [-1, 3])], 0) ** 2)

    Parts(compared, X[:, :3], S).check()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n: x[: tf.minimum(n, 64)],
        lambda x, n: tf.zeros([tf.maximum(n, 64)]) + x[0, 0],
        lambda x, n: x[: n - n % 2],
        lambda x, n: x[: 2 * (n // 2)],
        lambda x, n: x[: tf.where(n > 64, n, 64)],
    ],
)
def test_sizes_that_are_no_multiple_of_the_batch_are_not_partitioned(fn):
    with pytest.raises(NotPartitioned, match="depends on the size of the batch"):
        Parts(lambda x: fn(tf.cast(x, tf.float32), tf.shape(x)[0]), X)
