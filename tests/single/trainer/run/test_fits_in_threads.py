"""Concurrent fits in several threads match separate fits, wherever the threads switch."""

from __future__ import annotations

import contextlib
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal, mirrored

import unisono
from unisono.trainer.step.global_metrics import losses_count_samples, metrics_of

ROWS, BATCH, EPOCHS = 12, 4, 2
HANGS = 30.0  # seconds to wait for a turn before an error


class Turns:
    """Runs one of several programs at a time, and switches to the next one at each call of `next`."""

    def __init__(self, names):
        self._names, self._changed = list(names), threading.Condition()
        self.taken = []

    def next(self, name):
        """Runs each other program up to its next call. A finished program takes no turns."""
        with self._changed:
            self.taken.append(name)
            self._pass_on(name)
            self._wait(name)

    def run(self, name, program):
        """Calls `program()` at its first turn."""
        with self._changed:
            self._wait(name)
        try:
            return program()
        finally:
            with self._changed:
                self._pass_on(name)
                self._names.remove(name)

    def _pass_on(self, name):
        if self._names[0] == name:
            self._names.append(self._names.pop(0))
            self._changed.notify_all()

    def _wait(self, name):
        mine = self._changed.wait_for(lambda: self._names[0] == name, HANGS)
        assert mine, f"{name} waits for {self._names[0]}"


class Yields(keras.layers.Layer):
    """A custom layer, in the middle of which other programs run."""

    def __init__(self, turn):
        super().__init__()
        self._turn = [turn]

    def call(self, x):
        self._turn[0]()
        y = keras.ops.tanh(x)
        self._turn[0]()
        return y


class Largest(keras.metrics.Metric):
    """A metric that is not a sum over samples."""

    def __init__(self, turn):
        super().__init__(name="largest")
        self._turn = [turn]
        self.value_seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self._turn[0]()
        self.value_seen.assign(keras.ops.maximum(self.value_seen, keras.ops.max(y_pred)))

    def result(self):
        return self.value_seen + 0.0


class AtEachHook(keras.callbacks.Callback):
    """Lets the other programs run between steps."""

    def __init__(self, turn):
        super().__init__()
        self._turn = turn

    def on_train_batch_end(self, batch, logs=None):
        self._turn()

    on_epoch_begin = on_train_batch_begin = on_train_batch_end


def program(kind, seed, turn):
    """A function that builds and fits a model and returns the weights and the history."""

    def spread(outputs):
        turn()
        return 0.01 * tf.reduce_max(tf.abs(outputs))

    def loss(y, p):
        turn()
        return keras.ops.mean((y - p) ** 2, axis=-1)

    layers, start = keras.layers, keras.initializers.GlorotUniform
    with (mirrored(2) if kind == "two replicas" else tf.distribute.get_strategy()).scope():
        hidden = layers.Dense(4, kernel_initializer=start(seed)), Yields(turn)
        random = layers.BatchNormalization(), layers.Dropout(0.3, seed=seed)
        last = layers.Dense(1, activity_regularizer=spread, kernel_initializer=start(seed + 1))
        package = keras if kind == "plain Keras" else unisono
        model = package.Sequential([keras.Input((3,)), *hidden, *random, last])
        model.compile(keras.optimizers.Adam(0.05), loss, metrics=["mae", Largest(turn)])
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, ROWS, 3)).astype("float32")
    y = y[:, :1]

    def fit():
        given = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "shuffle": False}
        history = model.fit(x, y, callbacks=[AtEachHook(turn)], **given)
        return model.get_weights(), history.history

    return fit


KINDS = ("two replicas", "one device", "plain Keras")


@pytest.mark.long
def test_fits_in_three_threads_have_the_numbers_that_each_has_alone():
    """Two Unisono models and a plain Keras model switch in layers, losses, metrics, regularizers and callbacks."""
    alone = {kind: program(kind, seed, lambda: None)() for seed, kind in enumerate(KINDS)}
    turns, found, errors = Turns(KINDS), {}, {}

    def run(seed, kind):
        try:
            found[kind] = turns.run(kind, lambda: program(kind, seed, lambda: turns.next(kind))())
        except BaseException as error:
            errors[kind] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(KINDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors.values():
        raise error
    switches = sum(first != second for first, second in zip(turns.taken, turns.taken[1:]))
    assert switches > 20
    for kind in KINDS:
        assert_equal(found[kind][0], alone[kind][0], kind)
        assert alone[kind][1] == found[kind][1], kind


def test_steps_of_one_model_that_are_traced_in_two_threads_end_in_any_order():
    """Methods that a step replaces stay replaced until the last step ends, and are restored then."""

    inputs = keras.Input((3,))
    model = unisono.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1)(inputs)])
    model.compile("sgd", ["mse", "mse"])
    model.evaluate(np.zeros((2, 3)), [np.zeros((2, 1)), np.zeros((2, 1))], verbose=0)
    owners = [*model.metrics, *metrics_of(model), *model.layers]
    before = [dict(vars(owner)) for owner in owners]

    def step():
        stack = contextlib.ExitStack()
        stack.enter_context(losses_count_samples(model))
        return stack

    first, second = step(), step()
    inside = [dict(vars(owner)) for owner in owners]
    first.close()
    assert [dict(vars(owner)) for owner in owners] == inside != before
    second.close()
    assert [dict(vars(owner)) for owner in owners] == before
