"""The private parts of Keras that mixed precision relies on: these tests fail if one of them changes."""

import copy

import keras
import numpy as np

from unisono import mixed_precision, optimizers
from unisono.compat.keras_private.layers import layers_of, own_weights, watch_calls
from unisono.compat.keras_private.optimizers import optimizer_strategy
from unisono.compat.keras_private.variables import make_again
from unisono.mixed_precision import policy


def nested():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="inside")])
    return keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1, name="outside")])


def test_layers_are_found_at_every_depth_behind_the_model():
    model = nested()
    names = [layer.name for layer in layers_of(model)[1:]]
    assert {"inside", "outside"} <= set(names)
    assert model.name not in names


def test_own_weights_are_those_of_the_layer_alone():
    model = nested()
    assert own_weights(model) == []
    assert len(own_weights(model.layers[1])) == 2
    model.layers[1].trainable = False
    assert own_weights(model.layers[1]) == []


def test_watch_calls_sees_outputs_and_leaves_no_trace():
    layer, seen = keras.layers.Dense(2), []
    with watch_calls(layer, lambda *event: seen.append(event)):
        result = layer(np.ones((1, 3)))
    layer(np.ones((1, 3)))
    assert [(event[0], event[1] is layer) for event in seen] == [("start", True), ("end", True)]
    assert seen[1][2] is result
    assert "call" not in vars(layer)


def test_layers_and_models_hold_the_global_policy_object_itself():
    mixed = keras.DTypePolicy("mixed_float16")
    keras.config.set_dtype_policy(mixed)
    assert keras.config.dtype_policy() is mixed
    assert nested().dtype_policy is mixed
    assert keras.layers.Dense(1).dtype_policy is mixed
    assert policy.loss_scale_of(mixed) == "dynamic"


def test_optimizer_strategy_is_the_one_it_was_made_under():
    import tensorflow as tf

    assert optimizer_strategy(keras.optimizers.SGD()) is tf.distribute.get_strategy()


def test_keras_counts_and_lays_out_the_variables_of_a_loss_scale_optimizer_as_we_save_them():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    optimizer.build([keras.Variable([1.0])])
    names = [variable.name for variable in optimizer._variables]
    assert names == ["iteration", "learning_rate", "step_counter", "dynamic_scale"]
    assert optimizer.variables[4:] == optimizer.inner_optimizer.variables


def test_keras_takes_the_limits_of_the_scale_for_a_truth_value():
    config = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()).get_config()
    again = keras.optimizers.LossScaleOptimizer.from_config({**config, "dynamic": {"min_scale": 1.0}})
    assert again.get_config() == config


def test_loss_scale_optimizer_in_a_file_is_ours_in_our_scope_and_keras_own_elsewhere():
    saved = keras.optimizers.serialize(
        mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(), min_scale=4.0)
    )
    assert type(keras.optimizers.deserialize(copy.deepcopy(saved))) is keras.optimizers.LossScaleOptimizer
    assert "LossScaleOptimizer" not in keras.saving.get_custom_objects()
    ours = optimizers.deserialize(copy.deepcopy(saved))
    assert type(ours) is mixed_precision.LossScaleOptimizer and ours.min_scale == 4.0
    assert copy.deepcopy(ours).min_scale == 4.0


def test_plain_loss_scale_optimizer_is_written_and_read_by_keras_alone():
    theirs = keras.optimizers.serialize(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()))
    assert theirs["registered_name"] is None
    assert type(keras.optimizers.deserialize(theirs)) is keras.optimizers.LossScaleOptimizer


def test_make_again_keeps_the_variable_and_its_value():
    import tensorflow as tf

    variable = keras.Variable(3.0)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        make_again(variable)
    assert len(strategy.experimental_local_results(variable.value)) == 2
    assert variable.numpy() == 3.0
