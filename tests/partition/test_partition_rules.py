"""Every rule of the partition pass: uneven shards, also with a replica without samples, against the full batch."""

from __future__ import annotations

import pytest
import tensorflow as tf
from partition_in_parts import Parts
from partition_programs import COMMUNICATED, PROGRAMS, SINGLE, S, X

FLOAT64, FLOAT32 = 1e-12, 1e-5  # another summation order


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_in_uneven_parts_matches_the_whole_and_communicates_as_little(name):
    fn, *batch = PROGRAMS[name]
    parts = Parts(fn, *batch).check(tolerance=FLOAT32 if name in SINGLE else FLOAT64)
    assert parts.communicated == COMMUNICATED[name]


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
