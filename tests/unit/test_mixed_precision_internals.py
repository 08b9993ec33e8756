"""The private parts of Keras that mixed precision stands on: these fail when one of them changes."""

import keras
import numpy as np
from unisono.mixed_precision import keras_internals, policy


def nested():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="inside")])
    return keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(1, name="outside")])


def test_all_layers_finds_every_depth_but_not_the_model():
    model = nested()
    names = [layer.name for layer in keras_internals.all_layers(model)]
    assert {"inside", "outside"} <= set(names)
    assert model.name not in names


def test_own_weights_are_those_of_the_layer_alone():
    model = nested()
    assert keras_internals.own_weights(model) == []
    assert len(keras_internals.own_weights(model.layers[1])) == 2
    model.layers[1].trainable = False
    assert keras_internals.own_weights(model.layers[1]) == []


def test_watch_calls_sees_outputs_and_leaves_no_trace():
    layer, seen = keras.layers.Dense(2), []
    with keras_internals.watch_calls(layer, lambda *event: seen.append(event)):
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

    assert keras_internals.optimizer_strategy(keras.optimizers.SGD()) is tf.distribute.get_strategy()
