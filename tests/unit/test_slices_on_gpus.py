"""Sparse gradients whose sizes do not depend on which rows they contain match those with unique rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal, mirrored

import unisono
from unisono.distribute.hardware import devices
from unisono.optimizers.stages.sparse_gradients import merge_rows, unique_rows

ROWS = 6
RULES = ["SGD", "Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Ftrl", "Lion"]
RULES += ["Adafactor"]


def slices(indices, dtype="float32"):
    values = np.random.default_rng(len(indices)).integers(-8, 9, (len(indices), 2)).astype(dtype)
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices, "int32"), tf.constant([ROWS, 2]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("indices", [[4, 1, 4, 0, 1, 4], [5, 5, 5], [3], [2, 0, 1], []])
def test_merged_rows_are_the_same_gradient_with_each_row_added_up_once(indices, dtype):
    given = slices(indices, dtype)
    merged = merge_rows(given)
    named = merged.indices.numpy()
    holds = np.any(merged.values.numpy() != 0, axis=1)
    np.testing.assert_array_equal(tf.convert_to_tensor(merged), tf.convert_to_tensor(unique_rows(given)))
    assert len(named) == len(indices) and set(named) == set(indices)
    assert len(set(named[holds])) == holds.sum(), "every row is unique"


def test_sums_after_aggregation_have_the_same_order_on_every_gpu(monkeypatch):
    """TensorFlow's `unsorted_segment_sum` adds in any order on a GPU, and the copies of a variable would differ."""
    monkeypatch.setattr(devices, "is_gpu", lambda device: True)

    def merge(fn):
        given = slices([4, 1, 4, 0, 1, 4])
        mirrored(2).run(lambda: fn(given).values)

    for fn in (unique_rows, merge_rows):
        graph = tf.function(merge).get_concrete_function(fn).graph
        assert "UnsortedSegmentSum" not in {operation.type for operation in graph.get_operations()}
    monkeypatch.undo()
    given = slices([4, 1, 4, 0, 1, 4])
    expected = unique_rows(given)
    monkeypatch.setattr(devices, "is_gpu", lambda device: True)
    for found in mirrored(2).experimental_local_results(mirrored(2).run(lambda: unique_rows(given))):
        assert_equal([found.values, found.indices], [expected.values, expected.indices])


def test_samples_in_places_of_other_lengths_make_one_graph():
    traced = []

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, 2])])
    def merge(indices, values):
        traced.append(1)
        return merge_rows(tf.IndexedSlices(values, indices, tf.constant([ROWS, 2]))).values

    for count in (0, 1, 5):
        assert merge(tf.zeros([count], tf.int32), tf.ones([count, 2])).shape == (count, 2)
    assert len(traced) == 1


@pytest.mark.parametrize("rule", RULES)
def test_update_rules_of_keras_do_not_mind_the_spare_places(rule):
    results = []
    for as_given in (unique_rows, merge_rows):
        variable = keras.Variable(np.linspace(-1, 1, ROWS * 2).reshape(ROWS, 2), dtype="float32")
        optimizer = getattr(unisono.optimizers, rule)(0.1, clipnorm=0.5)
        for indices in ([4, 1, 4, 0], [0, 0, 5, 0]):
            optimizer.apply([as_given(slices(indices))], [variable])
        results.append(variable.numpy())
    np.testing.assert_array_equal(results[0], results[1])
