"""Operations placed as for a GPU: shapes are computed on the host, and every value is bitwise identical."""

import numpy as np
import pytest
import tensorflow as tf

from unisono.distribute.hardware import devices
from unisono.distribute.step_context import StepContext, step_scope

VALUES = np.random.default_rng(3).normal(size=(3, 4, 5))
NUMBERS = np.array([[2**31 - 1, -5, 0], [-(2**31), 7, 7]], "int32")


def computed(fn, spec, values, as_on_gpu, monkeypatch):
    """The result of `fn` on the second device, and the types of the operations placed on the first."""
    monkeypatch.setattr(devices, "is_gpu", lambda device: as_on_gpu)

    @tf.function(input_signature=[spec], autograph=False)
    def compute(x):
        with tf.device("CPU:1"), step_scope(StepContext(0, 1, 2, 2)):
            return fn(x)

    graph = compute.get_concrete_function().graph
    on_host = {each.type for each in graph.get_operations() if "CPU:0" in each.device}
    return compute(tf.cast(values, spec.dtype)).numpy(), on_host


def on_both(fn, spec, values, monkeypatch):
    """As `computed` as on a GPU, and without; the results must be bitwise identical."""
    ours, on_host = computed(fn, spec, values, True, monkeypatch)
    expected, nothing = computed(fn, spec, values, False, monkeypatch)
    np.testing.assert_array_equal(ours, expected)
    return on_host, nothing


def gradient_of(reduce, axis, keepdims):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            means = reduce(x, axis, keepdims)
            total = tf.reduce_sum(means * means)
        return tape.gradient(total, x)

    return gradient


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "axis", "keepdims"),
    [
        ([None, 4, 5], 0, False),
        ([None, 4, 5], (1, -1), True),
        ([None, None, 5], (0, -2), True),
        ([None, 4, 5], None, False),
        (None, (0, 2), False),
    ],
)
def test_gradient_of_a_mean_has_its_bits_and_its_sizes_on_the_host(shape, axis, keepdims, dtype, monkeypatch):
    spec, fn = tf.TensorSpec(shape, dtype), gradient_of(tf.reduce_mean, axis, keepdims)
    on_host, nothing = on_both(fn, spec, VALUES, monkeypatch)
    assert not nothing and "Shape" not in on_host, "a shape is computed on the device of the values"
    assert on_host <= {"DynamicStitch", "GatherV2", "Prod"}
    assert on_host


def test_product_with_rows_of_unknown_number_asks_for_no_size(monkeypatch):
    def fn(x):
        return tf.tensordot(x, tf.ones([5, 2], x.dtype), axes=1)

    on_host, _ = on_both(fn, tf.TensorSpec([None, None, 5], tf.float32), VALUES, monkeypatch)
    assert on_host == {"GatherV2", "Prod"}


@pytest.mark.parametrize("compare", [tf.equal, tf.not_equal, tf.less, tf.greater_equal])
def test_comparison_of_whole_numbers_is_made_in_64_bits(compare, monkeypatch):
    kinds = []

    def fn(x):
        result = compare(x, tf.reverse(x, [0]))
        kinds.append(result.op.inputs[0].dtype)
        return result

    on_both(fn, tf.TensorSpec([None, 3], tf.int32), NUMBERS, monkeypatch)
    assert kinds == [tf.int64, tf.int32]


def test_constant_that_a_kernel_takes_from_the_host_is_there(monkeypatch):
    def fn(x):
        return tf.raw_ops.PadV2(input=x, paddings=[[1, 0]], constant_values=tf.constant(7.0))

    ours, on_host = computed(fn, tf.TensorSpec([2], tf.float32), [1.0, 2.0], True, monkeypatch)
    assert ours.tolist() == [7.0, 1.0, 2.0]
    assert on_host == {"Const"}


def test_sizes_that_the_host_computes_for_itself_stay_where_they_are(monkeypatch):
    def fn(x):
        return tf.reshape(x, [tf.shape(x)[0] * 2, -1])

    _, on_host = computed(fn, tf.TensorSpec([None, 4], tf.float32), np.ones([3, 4]), True, monkeypatch)
    assert on_host == set()
