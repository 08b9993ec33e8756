"""Batched logs of many steps equal those of per-batch hooks, and do not shorten compiled calls."""

from __future__ import annotations

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import GradientsOfItsOwn, Stop, assert_equal, mirrored

import unisono

STEPS, ROWS = 40, 4
COMPILED = [(kind, how) for how in ({}, {"jit_compile": True}) for kind in ("arrays", "dataset")]


class Woken(keras.callbacks.Callback):
    """Records the arguments of a per-batch hook: the batch number, the logs, and the step in `fit_state`."""

    def __init__(self):
        super().__init__()
        self.seen, self.begun = [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.begun.append((batch, self.model.fit_state.step))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, {name: np.asarray(v).tolist() for name, v in logs.items()}))


class Told(Woken):
    only_reads_logs = True


class Vectors(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen, self.calls = [], 0

    def on_train_steps_end(self, first, logs):
        self.calls += 1
        rows = zip(*(column.tolist() for column in logs.values()))
        self.seen += [(first + i, dict(zip(logs, values))) for i, values in enumerate(rows)]

    def get_state(self):
        return {"seen": self.seen}

    def set_state(self, state):
        self.seen = [(step, dict(logs)) for step, logs in state["seen"]]


def data(kind="arrays", bad_row=None, steps=STEPS):
    # A last batch of 3 samples.
    x = np.random.default_rng(1).normal(size=(ROWS * steps - 1, 4)).astype("float32")
    if bad_row is not None:
        x[bad_row] = np.nan
    if kind == "arrays":
        return {"x": x, "y": x[:, :1], "batch_size": ROWS, "shuffle": False}
    return {"x": tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(ROWS)}


def trained(callbacks, fit_arguments, strategy=None, optimizer=None, cls=unisono.Model, epochs=2, **how):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    how = {"jit_compile": False, "metrics": ["mae"], **how}
    with (strategy or tf.distribute.get_strategy()).scope():
        inputs = keras.Input((4,))
        model = cls(inputs, keras.layers.Dense(1)(keras.layers.Dense(3, "tanh")(inputs)))
        model.compile(optimizer or unisono.optimizers.Adam(0.01), "mse", **how)
    model.fit(**fit_arguments, epochs=epochs, verbose=0, callbacks=callbacks)
    return model


@pytest.mark.short("arrays-how4")
@pytest.mark.parametrize("kind, how", [*COMPILED, ("arrays", {"run_eagerly": True})])
def test_many_steps_at_once_have_the_logs_of_each(kind, how):
    woken, told, vectors = Woken(), Told(), Vectors()
    steps = 3 if how.get("run_eagerly") else STEPS
    plain = trained([woken], data(kind, steps=steps), **how)
    model = trained([told, Overwriting(), vectors], data(kind, steps=steps), **how)
    assert told.seen == vectors.seen == woken.seen
    assert told.begun == woken.begun
    assert len(woken.seen) == 2 * steps
    if not how.get("run_eagerly"):  # on a busy machine an eager step takes as long as a compiled call should
        assert vectors.calls < 2 * steps
    assert_equal(plain.get_weights(), model.get_weights())


class Overwriting(Vectors):
    """Changes what it is given: each callback has its own arrays."""

    def on_train_steps_end(self, first, logs):
        super().on_train_steps_end(first, logs)
        logs["loss"][:] = 0.0


@pytest.mark.long
def test_two_replicas_with_a_loss_scale_have_the_logs_of_each_step():
    def optimizer():
        inner = unisono.optimizers.SGD(0.01)
        return unisono.mixed_precision.LossScaleOptimizer(
            inner, initial_scale=2.0**127, dynamic_growth_steps=3
        )

    woken, told, vectors = Woken(), Told(), Vectors()
    trained([woken], data(steps=12), mirrored(2), optimizer())
    trained([told, vectors], data(steps=12), mirrored(2), optimizer())
    assert told.seen == vectors.seen == woken.seen
    assert len({logs["loss_scale"] for _, logs in told.seen}) > 1
    assert vectors.calls < 24


class OwnLogs(GradientsOfItsOwn, unisono.Model):
    def logs_of(self, loss, x):
        return {"of": {"loss": loss}, "columns": keras.ops.sum(x, axis=0)}


class OwnLogsOfUnknownShape(OwnLogs):
    def logs_of(self, loss, x):
        return {**super().logs_of(loss, x), "large": tf.boolean_mask(x, x > 0)}


def test_logs_of_a_custom_step_are_reported_with_their_shapes():
    woken, told, vectors = Woken(), Told(), Vectors()
    trained([woken], data(), cls=OwnLogs)
    trained([told, vectors], data(), cls=OwnLogs)
    assert told.seen == vectors.seen == woken.seen
    assert np.shape(told.seen[0][1]["columns"]) == (4,)
    assert vectors.calls < 2 * STEPS


def test_logs_of_unknown_shape_are_reported_step_by_step():
    woken, told, vectors = Woken(), Told(), Vectors()
    for callbacks in ([woken], [told, vectors]):
        trained(callbacks, data(steps=6), cls=OwnLogsOfUnknownShape, epochs=1, run_eagerly=True)
    assert told.seen == vectors.seen == woken.seen
    assert vectors.calls == 6


def test_readers_and_others_are_called_in_the_order_of_their_list():
    events = []

    class Noting(Told):
        def on_train_batch_end(self, batch, logs=None):
            events.append(("a", batch))
            logs["mark"] = batch

    class Reading(Told):
        def on_train_batch_end(self, batch, logs=None):
            events.append(("b", batch, logs["mark"]))

    class EveryFourth(keras.callbacks.Callback):
        def steps_until_call(self, step):
            return 4 - step % 4

        def on_train_batch_end(self, batch, logs=None):
            events.append(("c", batch, logs["mark"]))

    trained([Noting(), EveryFourth(), Reading()], data(steps=8), epochs=1)
    each = {batch: [event for event in events if event[1] == batch] for batch in range(8)}
    assert list(itertools.chain(*each.values())) == events
    for batch in (0, 1, 2):
        assert ("a", batch) in each[batch] and ("b", batch, batch) in each[batch]
    assert each[3] == [("a", 3), ("c", 3, 3), ("b", 3, 3)]
    assert each[7] == [("a", 7), ("c", 7, 7), ("b", 7, 7)]


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_steps_before_an_error_are_reported(kind):
    def failing(x, y):
        tf.debugging.assert_all_finite(x, "bad sample")
        return x, y

    class Failing(unisono.Model):
        def compute_loss(self, x, *others, **more):
            with tf.control_dependencies([tf.debugging.assert_all_finite(x, "bad sample")]):
                return tf.identity(super().compute_loss(x, *others, **more))

    told, vectors, arguments = Told(), Vectors(), data(kind, bad_row=ROWS * 21)
    if kind == "dataset":
        arguments["x"] = arguments["x"].map(failing)
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad sample"):
        trained([told, vectors], arguments, cls=Failing if kind == "arrays" else unisono.Model)
    assert [step for step, _ in told.seen] == list(range(21))
    assert told.seen == vectors.seen
    assert vectors.calls < 21


@pytest.mark.long
def test_fixed_compiled_calls_tell_per_batch_hooks_at_their_end_as_keras_does():
    woken, told, vectors, reference = Woken(), Told(), Vectors(), Vectors()
    trained([woken], data(), steps_per_execution=7, epochs=1)
    trained([told, vectors], data(), steps_per_execution=7, epochs=1)
    trained([reference], data(), epochs=1)
    assert told.seen == woken.seen
    assert vectors.seen == reference.seen
    assert vectors.calls == 6


class WokenForNaN(keras.callbacks.TerminateOnNaN):
    """An unknown subclass: called at every batch."""


@pytest.mark.long
@pytest.mark.parametrize("kind, how", [*COMPILED, ("arrays", {"strategy": functools.partial(mirrored, 2)})])
def test_terminate_on_nan_ends_at_the_step_of_the_bad_loss(kind, how):
    found = []
    for callback in (WokenForNaN(), keras.callbacks.TerminateOnNaN()):
        given = {name: value() if callable(value) else value for name, value in how.items()}
        vectors = Vectors()
        model = trained([callback, vectors], data(kind, bad_row=ROWS * 33 + 1), **given)
        iterations = int(model.optimizer.iterations)
        found.append((vectors.seen[-1][0], repr(model.history.history), iterations, model.get_weights()))
    assert found[0][:3] == found[1][:3]
    assert found[1][0] == 33
    assert_equal(found[0][3], found[1][3])
    assert vectors.calls < 20


def test_terminate_on_nan_lets_no_batch_be_drawn_after_the_bad_one():
    drawn = []

    def batches():
        x = data()["x"]
        for step in range(STEPS):
            drawn.append(step)
            rows = x[ROWS * step : ROWS * step + ROWS] * (np.nan if step == 9 else 1)
            yield rows, rows[:, :1]

    spec = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec).with_options(options)
    trained([keras.callbacks.TerminateOnNaN()], {"x": dataset}, epochs=1)
    assert drawn == list(range(10))


@pytest.mark.long
def test_resumed_training_has_the_logs_of_the_one_that_was_never_stopped(tmp_path):
    class StopInTheSecondEpoch(keras.callbacks.Callback):
        def steps_until_call(self, step):
            return 26 - step if step < 26 and self.model.fit_state.epoch else None

        def on_train_batch_end(self, batch, logs=None):
            if self.model.fit_state.epoch and batch == 25:
                raise Stop

    def backup():
        return unisono.callbacks.BackupAndRestore(tmp_path, save_freq=9)

    reference, stopped, resumed = Vectors(), Vectors(), Vectors()
    trained([reference], data())
    with pytest.raises(Stop):
        trained([stopped, StopInTheSecondEpoch(), backup()], data())
    trained([resumed, backup()], data())
    assert resumed.seen == reference.seen


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_backup_after_a_bad_loss_holds_the_step_where_training_ended(kind, tmp_path):
    positions = []

    class Look(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            positions.append((self.model.fit_state.step, self.model.fit_state.source.position.step))

    trained([keras.callbacks.TerminateOnNaN(), Look()], data(kind, bad_row=ROWS * 33))
    assert positions == [(34, 34)]
