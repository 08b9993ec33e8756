"""The diagnosis reports the layer with the first non-finite value, and has no side effects."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal, mirrored

from unisono.mixed_precision.non_finite import batch_statistics, diagnose

X = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
Y = np.zeros((4, 2), "float32")


@keras.saving.register_keras_serializable("test")
class Times(keras.layers.Layer):
    """Multiplies by a constant, in the forward or the backward pass."""

    def __init__(self, forward=1.0, backward=1.0, **kwargs):
        super().__init__(**kwargs)
        self.forward, self.backward = forward, backward

    def call(self, inputs):
        @tf.custom_gradient
        def times(x):
            return x * self.forward, lambda dy: dy * self.backward

        return times(inputs)


def model_with(*layers):
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((3,)), dense(4, name="first"), *layers, dense(2, name="last")])
    model.compile("sgd", "mse")
    return model


def test_diagnose_finite_model_finds_nothing():
    found = diagnose(model_with(), (X, Y))
    assert found.first is None
    assert str(found) == "On this batch every output, the loss and every gradient is finite"


def test_diagnose_names_the_first_output_and_its_numbers():
    found = diagnose(model_with(Times(np.inf, name="broken")), (X, Y))
    assert (found.first.kind, found.first.layer, found.first.size) == ("output", "broken", 16)
    assert found.first.infinite + found.first.nan == 16
    assert "the output of layer 'sequential/broken' (float32: " in str(found)


def first(model, batch=(X, Y), **arguments):
    """The kind of the first value that is not finite, and its layer."""
    found = diagnose(model, batch, **arguments).first
    return found and (found.kind, found.layer)


def test_diagnose_names_the_first_gradient_backward():
    layers = [Times(name="fine"), Times(backward=np.nan, name="broken"), Times(name="after")]
    assert first(model_with(*layers)) == ("input gradient", "broken")


def test_diagnose_names_the_weights_whose_gradient_is_the_first():
    """The output's gradient is finite; multiplied by an input of 1e30 it no longer is."""
    model = model_with()
    model.layers[0].kernel.assign(model.layers[0].kernel * 0)
    given = {"batch": (X * 1e30, Y), "loss": lambda y_pred, **_: tf.reduce_sum(y_pred) * 1e10}
    assert first(model, **given) == ("weight gradient", "first")
    model.layers[0].trainable = False
    assert first(model, **given) is None


def test_diagnose_names_the_innermost_layer():
    inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Times(backward=np.inf, name="deep")])
    assert first(model_with(inner), (X, Y + 1)) == ("input gradient", "deep")


def test_diagnose_float16_overflow_depends_on_the_loss_scale():
    keras.config.set_dtype_policy("mixed_float16")
    model = model_with()
    assert diagnose(model, (X, Y)).first is None
    found = diagnose(model, (X, Y + 1000), loss_scale=2.0**15).first
    assert (found.kind, found.layer, found.dtype) == ("output gradient", "last", "float16")


def test_diagnose_names_an_input_too_large_for_float16():
    keras.config.set_dtype_policy("mixed_float16")
    found = diagnose(model_with(), (X * 1e30, Y))
    assert (found.first.kind, found.first.layer) == ("output", "first")
    assert not found.inputs


def test_diagnose_tells_of_data_and_weights_that_are_not_finite():
    model = model_with()
    bad = X.copy()
    bad[1, 2] = np.nan
    found = diagnose(model, (bad, Y, np.array([1, 1, np.inf, 1], "float32")))
    assert [(f.name, f.nan, f.infinite) for f in found.inputs] == [("x", 1, 0), ("sample_weight", 0, 1)]
    assert found.first.layer == "first"
    model.layers[0].bias.assign([0, np.inf, 0, 0])
    found = diagnose(model, (X, Y))
    assert [f.name for f in found.weights] == [model.layers[0].bias.path]
    assert "not finite before the step" in str(found)


def test_diagnose_names_the_loss_when_only_it_is_not_finite():
    assert first(model_with(), loss=lambda y_pred, **_: tf.reduce_sum(y_pred) * np.inf) == ("loss", None)


def test_diagnose_searches_nested_models_and_subclasses():
    class Outer(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras.Sequential([keras.layers.Dense(3), Times(np.nan, name="deep")])
            self.head = keras.layers.Dense(2)

        def call(self, inputs, training=False):
            return self.head(self.inner(inputs))

    model = Outer()
    model.compile("sgd", "mse")
    model(X)
    assert diagnose(model, (X, Y)).first.layer == "deep"


def test_diagnose_changes_nothing():
    model = model_with(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=3))
    before = [np.array(v) for v in model.variables]
    calls = [layer.call for layer in model.layers]
    diagnose(model, (X, Y))
    assert_equal(before, model.variables)
    assert [layer.call for layer in model.layers] == calls
    assert not any("call" in vars(layer) for layer in model.layers)


def test_diagnose_runs_on_mirrored_variables():
    with mirrored(2).scope():
        model = model_with(Times(backward=np.inf, name="broken"))
        assert first(model, (X, Y + 1)) == ("input gradient", "broken")
    assert first(model, (X, Y + 1)) == ("input gradient", "broken")


def test_batch_statistics_counts_what_is_not_finite():
    x = {"a": np.array([[1.0, np.nan], [3.0, -np.inf]], "float32"), "b": np.array([[2], [4]])}
    first, second, labels = batch_statistics((x, np.array(["u", "v"])))
    assert (first["name"], first["shape"], first["dtype"]) == ("x[0]", (2, 2), "float32")
    assert [first[key] for key in ("nan", "infinite", "min", "max", "mean")] == [1, 1, 1.0, 3.0, 2.0]
    assert (second["name"], second["mean"], second["dtype"]) == ("x[1]", 3.0, "int64")
    assert labels == {"name": "y", "shape": (2,), "dtype": "string"}


def test_diagnose_needs_a_batch_it_understands():
    with pytest.raises(ValueError):
        diagnose(model_with(), (X, Y, Y, Y))
