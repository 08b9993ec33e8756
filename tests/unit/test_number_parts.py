"""The numbers of which another one is computed, found in its graph."""

import tensorflow as tf

from unisono.distribute.step_context import StepContext
from unisono.trainer.step.number_parts import parts_of


def parts_in_graph(compute, *shape):
    """The operations that make the parts of `compute(x)`, for `x` of this shape."""
    found = []

    def trace(x):
        step = StepContext(0, 2, tf.shape(x)[0], tf.constant(8))
        found.extend(part.op.type for part in parts_of(compute(x), step))
        return x

    tf.function(trace, autograph=False).get_concrete_function(tf.TensorSpec(shape, tf.float64))
    return found


def test_parts_are_what_is_made_of_rows():
    def ratio(x):
        return tf.sqrt(tf.reduce_sum(x) / (tf.reduce_max(x) + 1))

    assert sorted(parts_in_graph(ratio, None, 3)) == ["Max", "Sum"]
    assert parts_in_graph(lambda x: tf.reduce_sum(tf.reduce_mean(x, 0)), None, 3) == ["Mean"]
    assert parts_in_graph(lambda x: tf.constant(2.0) * 3, None, 3) == []


def test_a_variable_is_one_part_however_often_it_is_read():
    weight = tf.Variable(2.0, dtype=tf.float64)
    found = parts_in_graph(lambda x: (tf.reduce_sum(x) + weight) * weight, None)
    assert sorted(found) == ["ReadVariableOp", "Sum"]


def test_a_long_computation_is_followed_to_its_parts():
    def long(x):
        value = tf.reduce_sum(x) / tf.reduce_sum(x * x)
        for _ in range(1500):  # more than Python lets functions call themselves
            value = value * 1.00001
        return value

    assert parts_in_graph(long, None) == ["Sum", "Sum"]


def test_numbers_of_eager_steps_have_no_parts():
    step = StepContext(0, 2, 4, 8)
    assert parts_of(tf.reduce_sum(tf.ones([3])), step) == []
