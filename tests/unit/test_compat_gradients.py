"""The gradients of sums and means where a shape is not known: TensorFlow's bits, shapes computed on the host."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from unisono.compat.gradients import without_waiting

VALUES = np.random.default_rng(3).normal(size=(3, 4, 5))


def gradients(reduce, take, shape, dtype, axis, keepdims):
    """Of a sum or mean in a graph that knows no more than `shape`, and where that graph computes."""

    @tf.function(input_signature=[tf.TensorSpec(shape, dtype)], autograph=False)
    def compute(values):
        with tf.device("CPU:1"), tf.GradientTape() as tape:
            tape.watch(values)
            means = reduce(values, axis, keepdims)
            total = tf.reduce_sum(means * means)
        with tf.device("CPU:1"):
            return tape.gradient(total, values)

    registered = ops.gradient_registry._registry
    originals = {name: registered[name]["type"] for name in ("Sum", "Mean")}
    for name, original in originals.items():
        registered[name]["type"] = take(ops.gradient_registry, name, original)
    try:
        graph = compute.get_concrete_function().graph
    finally:
        for name, original in originals.items():
            registered[name]["type"] = original
    return compute(tf.cast(VALUES, dtype)).numpy(), {
        operation.type for operation in graph.get_operations() if "CPU:0" in operation.device
    }


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "axis", "keepdims"),
    [
        ([None, 4, 5], 0, False),
        ([None, 4, 5], (1, -1), True),
        ([None, 4, 5], (-1, 1), False),
        ([None, None, 5], (0, -2), True),
        ([None, 4, 5], None, False),
        (None, (0, 2), False),
        ([3, 4, 5], (0, 1), False),
    ],
)
@pytest.mark.parametrize("reduce", [tf.reduce_sum, tf.reduce_mean])
def test_gradient_has_the_bits_of_tensorflows(reduce, dtype, shape, axis, keepdims):
    ours, on_host = gradients(reduce, without_waiting, shape, dtype, axis, keepdims)
    expected, _ = gradients(reduce, lambda _, name, original: original, shape, dtype, axis, keepdims)
    np.testing.assert_array_equal(ours, expected)
    assert "Shape" not in on_host, "a shape is found where the values are"
    unknown = shape is None or (shape[0] is None and axis not in ((1, -1), (-1, 1)))
    assert ("GatherV2" in on_host) == (unknown and reduce is tf.reduce_mean)


def test_other_gradients_are_as_they_were():
    assert without_waiting(ops.gradient_registry, "Max", len) is len
    assert without_waiting(ops.Graph, "Mean", len) is len
