"""Inputs of third-party programs train as with plain Keras on a single device, or raise a one-sentence error."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import mirrored

import unisono

X = np.random.default_rng(0).normal(size=(23, 4)).astype("float32")
Y = X[:, :1]
WORDS = np.array([["a", "b", "c"][i % 3] for i in range(23)])[:, None]
TOLERANCE = 1e-5  # float32 sums in a different order


def fit(make, x, y=None, strategy=None, **arguments):
    """(history, weights) of the model from `make`; `x` may be a function of the strategy."""
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = make()
        ours = isinstance(model, unisono.Model)
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=not ours)
    x = x(strategy or tf.distribute.get_strategy()) if callable(x) else x
    history = model.fit(x, y, verbose=0, shuffle=False, **arguments).history
    return history["loss"], model.get_weights()


def equal(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def dense(package):
    return lambda: package.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.short("2")
def test_dataset_by_function_begins_again_where_an_epoch_finds_its_end(steps):
    def by_function(strategy):
        rows = 6 // strategy.num_replicas_in_sync
        make = lambda context: tf.data.Dataset.from_tensor_slices((X, Y)).batch(rows)  # noqa: E731
        return strategy.distribute_datasets_from_function(make)

    begun = []
    count = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: begun.append(batch))
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6)
    options = {"epochs": 5, "steps_per_epoch": steps}
    expected = fit(dense(keras), data, **options)
    found = fit(dense(unisono), by_function, strategy=mirrored(2), callbacks=[count], **options)
    equal(found, expected)
    assert len(found[0]) == 5 and begun == [*range(steps)] * 5


def with_words(package, structure):
    def make():
        word = keras.Input((1,), dtype="string", name="word")
        number = keras.Input((4,), name="a number")
        one_hot = keras.layers.StringLookup(vocabulary=["a", "b", "c"], output_mode="one_hot")(word)
        output = keras.layers.Dense(1)(keras.layers.Concatenate()([one_hot, number]))
        return package.Model(structure(word, number), output)

    return make


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("declared", ["list", "dict"])
@pytest.mark.short("list-1")
def test_strings_are_found_by_name(declared, replicas):
    structure = {
        "list": lambda word, number: [word, number],
        "dict": lambda word, number: {"word": word, "a number": number},
    }[declared]
    x = {"word": WORDS, "a number": X}
    data = tf.data.Dataset.from_tensor_slices((x, Y)).batch(5)
    expected = fit(with_words(keras, structure), data)
    strategy = mirrored(2) if replicas == 2 else None
    equal(fit(with_words(unisono, structure), data, strategy=strategy), expected)
    equal(fit(with_words(unisono, structure), x, Y, batch_size=5), expected)


@pytest.mark.long
def test_targets_of_one_dimension_train_as_in_keras():
    expected = fit(dense(keras), X, Y[:, 0], batch_size=5)
    equal(fit(dense(unisono), X, Y[:, 0], batch_size=5), expected)
    equal(fit(dense(unisono), X, Y[:, 0], strategy=mirrored(2), batch_size=5), expected)


@pytest.mark.parametrize("layer", [keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN])
@pytest.mark.short("SimpleRNN")
def test_stateful_layers_are_rejected_on_several_replicas_and_train_on_one(layer):
    x = np.tile(X[:12, None], (1, 3, 1))

    def make(package):
        inputs = keras.Input(batch_shape=(6, 3, 4))
        return lambda: package.Model(inputs, keras.layers.Dense(1)(layer(2, stateful=True)(inputs)))

    equal(fit(make(unisono), x, Y[:12], batch_size=6), fit(make(keras), x, Y[:12], batch_size=6))
    with pytest.raises(ValueError, match=r"`fit\(\)`: the layer .* has stateful=True, .* 2 replicas split"):
        fit(make(unisono), x, Y[:12], strategy=mirrored(2), batch_size=6)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.short("False-1", "True-1", "True-2")
def test_targets_with_more_samples_than_inputs_are_rejected(known, replicas):
    data = tf.data.Dataset.from_tensor_slices((X[:18], Y[:18])).batch(6, drop_remainder=known)
    data = data.map(lambda x, y: (x, tf.concat([y, y], 0)))
    error = ValueError if known else tf.errors.InvalidArgumentError
    message = "different numbers of samples" if known else "`y` must have as many samples as `x`"
    with pytest.raises(error, match=message):
        fit(dense(unisono), data, strategy=mirrored(2) if replicas == 2 else None)
