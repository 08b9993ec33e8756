"""The private parts of Keras that the trainer uses still exist and behave as expected."""

import random
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.losses import loss as loss_module

import unisono
from unisono.compat.keras_private.layers import get_keras_mask, set_keras_mask, without_layer_losses
from unisono.compat.keras_private.random_state import (
    global_seed_generator_state,
    is_random_state,
    thread_state,
)
from unisono.compat.keras_private.training import (
    CompileLoss,
    CompileMetrics,
    compiled_loss,
    flat_losses,
    pretending_built,
)
from unisono.compat.tensorflow_graphs.graphs import scratch_graph
from unisono.trainer.step import global_loss as exact_loss


@pytest.mark.parametrize(
    "reduction", ["sum_over_batch_size", "sum", "none", "mean", "mean_with_sample_weight", None]
)
def test_reductions_are_those_that_are_made_exact(reduction):
    values, weight = tf.constant([1.0, 2.0, 6.0]), tf.constant([1.0, 0.0, 2.0])
    result = loss_module.reduce_weighted_values(values, weight, reduction=reduction)
    weighted = np.array([1.0, 0.0, 12.0])
    expected = {"sum": 13.0, "mean_with_sample_weight": 13.0 / 3.0, None: weighted, "none": weighted}
    np.testing.assert_allclose(result, expected.get(reduction, 13.0 / 3.0), rtol=1e-6)


def test_no_reduction_is_unknown_to_us():
    with pytest.raises(ValueError, match="reduction") as caught:
        keras.losses.MeanSquaredError(reduction="mystery")
    known = {"sum_over_batch_size", "sum", "None", "none", "mean", "mean_with_sample_weight"}
    named = set(str(caught.value).split("{")[1].split("}")[0].replace("'", "").replace('"', "").split(", "))
    assert named <= known


def test_stock_losses_that_work_on_samples_are_found():
    on_rows = [
        keras.losses.MeanSquaredError(),
        keras.losses.SparseCategoricalCrossentropy(),
        keras.losses.Huber(),
    ]
    assert all(exact_loss.works_on_samples(loss) for loss in on_rows)
    assert not any(exact_loss.works_on_samples(loss) for loss in (keras.losses.Dice(), keras.losses.Circle()))
    assert len(exact_loss._ROWWISE_FUNCTIONS) == len(exact_loss._ROWWISE_NAMES.split())


def test_attributes_of_a_compiled_model_exist():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(np.zeros((2, 2)), np.zeros((2, 1)), verbose=0)
    for name in (
        "_assert_compile_called",
        "_call_has_training_arg",
        "_compile_config",
        "_compile_loss",
        "_compile_metrics",
        "_compute_loss",
        "_distribute_strategy",
        "_flatten_layers",
        "_flatten_metrics_in_order",
        "_initial_epoch",
        "_loss_tracker",
        "_should_eval",
        "_symbolic_build",
    ):
        assert hasattr(model, name), name
    assert isinstance(model._compile_loss, CompileLoss)
    assert isinstance(model._compile_metrics, CompileMetrics)
    assert isinstance(model._loss_tracker, keras.metrics.Mean)
    assert all(layer.built for layer in model._flatten_layers(include_self=False))


def test_compiled_losses_are_found_and_those_of_layers_can_be_left_out():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_regularizer="l2")])
    assert model._losses_override == []
    model.compile("sgd", "mse")
    model.fit(np.zeros((2, 2)), np.zeros((2, 1)), verbose=0)
    compiled = compiled_loss(model)
    assert float(compiled(tf.zeros((2, 1)), tf.ones((2, 1)), None)) == 1.0
    (loss,) = flat_losses(model)
    assert isinstance(loss, keras.losses.MeanSquaredError) or loss.fn is keras.losses.mean_squared_error
    assert float(model.losses[0]) > 0
    with without_layer_losses(model):
        assert [float(value) for value in model.losses] == [0.0]
    assert float(model.losses[0]) > 0


def test_symbolic_build_asks_the_optimizer_whether_it_is_built():
    model = unisono.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    batch = (keras.KerasTensor((None, 2)), keras.KerasTensor((None, 1)))
    with pretending_built(model.optimizer):
        model._symbolic_build(data_batch=batch)
    assert model.built and model._compile_loss.built and not model.optimizer.built


def test_own_class_is_written_as_keras_own():
    config = keras.saving.serialize_keras_object(unisono.Sequential([keras.Input((2,))]))
    assert (config["module"], config["class_name"]) == ("keras", "Sequential")


def test_thread_state_carries_the_seed_generator_and_the_policy():
    keras.utils.set_random_seed(5)
    before = random.getstate()
    state = thread_state()
    assert random.getstate() == before, "reading the state drew a random number"
    seen = []

    def other():
        state.enter()
        seen.append(global_seed_generator_state(make=True))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [global_seed_generator_state(make=True)]
    assert {"stateless_scope", "name_scope_stack"} & set(vars(global_state.GLOBAL_STATE_TRACKER))


def test_seed_is_two_numbers_of_32_bits():
    seed = keras.random.SeedGenerator(3).next()
    assert is_random_state(keras.random.SeedGenerator(3).state) and not is_random_state(keras.Variable(1))
    assert seed.shape == (2,) and seed.dtype in (tf.uint32, tf.int32, tf.int64)
    assert int(tf.reduce_max(tf.cast(seed, tf.int64))) < 2**32


def test_added_losses_are_remembered_by_id():
    layer = keras.layers.Dense(1, activity_regularizer="l2")
    with keras.StatelessScope(collect_losses=True) as scope:
        layer(tf.ones((1, 2)))
    assert {id(loss) for loss in scope.losses} == layer._loss_ids


def test_stateless_scope_keeps_values_by_id_of_the_variable():
    v = keras.Variable(1.0)
    with keras.StatelessScope() as scope:
        v.assign(2.0)
        assert float(v.value) == 2.0
    assert float(scope.state_mapping[id(v)]) == 2.0
    assert float(v.value) == 1.0


def test_masks_stay_attached_to_tensors():
    x = tf.ones((1, 2))
    set_keras_mask(x, tf.constant([[True, False]]))
    assert get_keras_mask(x) is not None


def test_scratch_graph_runs_nothing_and_makes_variables():
    with scratch_graph():
        v = keras.Variable("ones", shape=())
        v.assign(3.0)
    assert float(v.value) == 1.0
