"""Writes under a false guard leave every bit unchanged; under a true guard they equal unguarded writes."""

import numpy as np
import pytest
import tensorflow as tf

from unisono.compat.tensorflow_graphs.guarded_writes import writes_only_where

OLD = np.array([[1.0, -0.0], [np.nan, np.inf], [1e-45, -3.0]], "float32")
ROWS = tf.IndexedSlices(tf.constant([[2.0, 5.0], [np.nan, 1.0]]), tf.constant([2, 0]), tf.constant([3, 2]))
TWICE = tf.IndexedSlices(tf.constant([[2.0, 5.0], [4.0, 1.0]]), tf.constant([2, 2]), tf.constant([3, 2]))
WRITES = {
    "assign": lambda v: v.assign(tf.ones([3, 2])),
    "assign_add": lambda v: v.assign_add(tf.fill([3, 2], np.float32(0.1))),
    "assign_sub": lambda v: v.assign_sub(tf.fill([3, 2], np.float32(np.nan))),
    "scatter_add": lambda v: v.scatter_add(TWICE),
    "scatter_sub": lambda v: v.scatter_sub(ROWS),
    "scatter_max": lambda v: v.scatter_max(ROWS),
    "scatter_update": lambda v: v.scatter_update(ROWS),
    "scatter_nd_update": lambda v: v.scatter_nd_update([[1], [0]], [[7.0, 8.0], [9.0, 1.0]]),
    "slice": lambda v: v[1:2].assign([[7.0, 8.0]]),
    "twice": lambda v: (v.assign_add(tf.ones([3, 2])), v.assign(2.0 * v)),
}


def bits(array):
    return np.asarray(array).view("uint32").tolist()


@pytest.mark.parametrize("name", WRITES)
def test_write_is_made_where_the_guard_is_true_and_leaves_all_bits_where_it_is_false(name):
    plain, guarded = tf.Variable(OLD), tf.Variable(OLD)

    @tf.function
    def write(condition):
        with writes_only_where(condition):
            WRITES[name](guarded)

    write(tf.constant(False))
    assert bits(guarded) == bits(OLD)
    WRITES[name](plain)
    write(tf.constant(True))
    assert bits(guarded) == bits(plain)


def test_other_threads_and_later_writes_are_not_guarded():
    def methods():
        names = ("assign", "assign_add", "scatter_update")
        return [getattr(tf.Variable(1.0), name).__func__ for name in names]

    before, variable = methods(), tf.Variable(1.0)

    @tf.function
    def write(condition):
        with writes_only_where(condition):
            variable.assign(2.0)
        variable.assign_add(10.0)

    write(tf.constant(False))
    assert float(variable) == 11.0
    assert methods() == before


def test_key_and_counter_of_random_numbers_are_those_of_the_automatic_choice():
    from tensorflow.python.ops import random_ops_util

    for seed in ([1, 2], [2**31 - 1, -5]):
        automatic = random_ops_util._get_key_counter(tf.constant(seed), tf.random.Algorithm.AUTO_SELECT.value)
        ours = random_ops_util._get_key_counter(tf.constant(seed), tf.random.Algorithm.PHILOX.value)
        assert [v.numpy().tolist() for v in automatic] == [v.numpy().tolist() for v in ours]
