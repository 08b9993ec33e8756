"""The Keras internals that the optimizers rely on: each test fails if that internal changes."""

import inspect

import keras
from keras.src import api_export
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from unisono.compat.keras_private.optimizers import overwritten_by_gradient
from unisono.compat.keras_private.variables import direct_writes, stateless_scope


def test_stateless_scope_is_found_and_can_be_left():
    v = keras.Variable([1.0])
    assert stateless_scope() is None
    with keras.StatelessScope() as scope:
        assert stateless_scope() is scope
        with direct_writes():
            v.assign([2.0])
        assert stateless_scope() is scope
        assert id(v) not in scope.state_mapping
    assert v.numpy() == [2.0]


def test_public_classes_are_registered_with_their_names():
    assert api_export.get_name_from_symbol(keras.optimizers.Adam) == "keras.optimizers.Adam"


def test_overwriting_variables_are_known():
    v = keras.Variable([1.0])
    assert not overwritten_by_gradient(v)
    v.overwrite_with_gradient = True
    assert overwritten_by_gradient(v)


def test_the_hooks_that_are_overridden_still_exist():
    for name in (
        "_apply_weight_decay",
        "_backend_update_step",
        "_clip_gradients",
        "_get_current_learning_rate",
        "_get_variable_index",
        "_overwrite_model_variables_with_average_value",
        "_untrack_variable",
        "_update_model_variables_moving_average",
        "_use_weight_decay",
        "_var_key",
    ):
        assert callable(getattr(TFOptimizer, name)), name
    optimizer = keras.optimizers.SGD(use_ema=True, gradient_accumulation_steps=2)
    optimizer.build([keras.Variable([1.0])])
    for name in (
        "_accumulated_gradients",
        "_distribution_strategy",
        "_iterations",
        "_learning_rate",
        "_model_variables_moving_average",
        "_trainable_variables",
        "_variables",
    ):
        assert hasattr(optimizer, name), name


def test_keras_still_applies_in_the_order_that_ours_follows():
    source = inspect.getsource(BaseOptimizer._backend_apply_gradients).rpartition(
        "        else:\n            # Apply"
    )[2]
    order = [
        "_clip_gradients",
        "_apply_weight_decay",
        "_backend_update_step",
        "_update_model_variables_moving_average",
    ]
    places = [source.index(name) for name in order]
    assert places == sorted(places)
