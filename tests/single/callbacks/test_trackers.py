"""Metric loggers of known packages keep compiled calls long, and see the optimizer of each step as in plain Keras."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from children import HELPERS
from helpers import mirrored

import unisono
from unisono.callbacks.call_schedule import only_reads_logs, steps_until_call

STEPS, EPOCHS = 24, 2
X = np.random.default_rng(1).normal(size=(4 * STEPS, 3)).astype("float32")


class WandbMetricsLogger(keras.callbacks.Callback):
    """As the callback of W&B: counts each batch, and reads the optimizer where it logs."""

    def __init__(self, log_freq=1):
        super().__init__()
        self.log_freq, self.steps, self.seen = log_freq, 0, []

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if batch % self.log_freq == 0:
            optimizer = self.model.optimizer
            rate, iterations = optimizer.learning_rate.numpy(), optimizer.iterations.numpy()
            self.seen.append((batch, float(logs["loss"]), float(rate), int(iterations)))


WandbMetricsLogger.__module__ = "wandb.integration.keras.callbacks.metrics_logger"


class EachStep(WandbMetricsLogger):
    """A user's: called after each step."""

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)


def kind(name, module="wandb.integration", bases=(keras.callbacks.Callback,), hooks=("on_train_batch_end",)):
    return type(
        name, bases, {"__module__": module, **dict.fromkeys(hooks, lambda self, batch, logs=None: None)}
    )


class Calls(keras.callbacks.Callback):
    """Counts compiled calls."""

    waits_for_compiled_calls, number = True, 0

    def on_train_batch_end(self, batch, logs=None):
        self.number += 1


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.9)


def fit(package, callbacks, strategy=None, optimizer=None, epochs=EPOCHS, model_class=None, **how):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    with (strategy or tf.distribute.get_strategy()).scope():
        layers = [keras.Input((3,)), keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)]
        model = (model_class or package.Sequential)(layers)
        model.compile(
            optimizer or package.optimizers.Adam(schedule()), "mse", **{"jit_compile": False, **how}
        )
    model.fit(X, X[:, :1], batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return model


def assert_same(seen, expected, tolerance=1e-5):
    assert len(seen) == len(expected) == EPOCHS * STEPS
    for ours, theirs in zip(seen, expected):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance)


@pytest.mark.parametrize("how", [{}, {"jit_compile": True}, {"replicas": 3}], ids=str)
@pytest.mark.short("{}")
def test_logger_reads_the_optimizer_of_each_step_in_few_calls(how):
    found, expected, calls = WandbMetricsLogger(), WandbMetricsLogger(), Calls()
    fit(keras, [expected])
    options = {"strategy": mirrored(how["replicas"])} if "replicas" in how else how
    fit(unisono, [found, calls], **options)
    assert_same(found.seen, expected.seen)
    assert found.steps == EPOCHS * STEPS
    assert calls.number < EPOCHS * STEPS / 2, "without trackers there are as few"
    assert len({rate for *_, rate, _ in found.seen}) == EPOCHS * STEPS


@pytest.mark.long
def test_logger_reads_the_updates_of_an_optimizer_that_accumulates():
    found, expected, calls = WandbMetricsLogger(), EachStep(), Calls()
    for callbacks in ([found, calls], [expected]):
        adam = unisono.optimizers.Adam(schedule(), gradient_accumulation_steps=4)
        fit(unisono, callbacks, optimizer=adam)
    assert found.seen == expected.seen and calls.number < EPOCHS * STEPS / 2


def test_logger_sees_the_rate_that_a_step_sets_and_skipped_steps():
    class Sets(unisono.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            self.optimizer.inner_optimizer._learning_rate.assign_sub(0.001)
            return logs

    def optimizer():
        inner = unisono.optimizers.SGD(0.05)
        return unisono.mixed_precision.LossScaleOptimizer(
            inner, initial_scale=2.0**127, dynamic_growth_steps=3
        )

    found, expected, calls = WandbMetricsLogger(), EachStep(), Calls()
    fit(unisono, [expected], optimizer=optimizer(), model_class=Sets)
    fit(unisono, [found, calls], optimizer=optimizer(), model_class=Sets)
    assert found.seen == expected.seen and calls.number < EPOCHS * STEPS / 2
    assert len({seen[2] for seen in found.seen}) > EPOCHS * STEPS / 2
    assert found.seen[-1][-1] < EPOCHS * STEPS, "skipped steps are not counted"


SAVES = kind("Saves", bases=(keras.callbacks.ModelCheckpoint,), hooks=())
DECIDED = {
    "logger": (kind("MlflowCallback", "mlflow.keras.callback"), None),
    "subclass without hooks": (
        kind("Mine", "mine", (kind("NeptuneCallback", "neptune_tensorflow_keras.impl"),), ()),
        None,
    ),
    "subclass with a hook": (kind("Mine", "mine", (WandbMetricsLogger,)), 1),
    "mixed hooks": (kind("Mine", "mine", (WandbMetricsLogger,), ("on_train_batch_begin",)), 1),
    "of a class that saves by another name": (kind("WandbKeeper"), 1),
    "named like one that saves": (kind("MyEvaluationLog", "mine", (WandbMetricsLogger,), ()), None),
    "checkpoint": (kind("WandbModelCheckpoint", bases=(keras.callbacks.ModelCheckpoint,)), 1),
    "checkpoint of its own": (kind("MlflowModelCheckpointCallback", "mlflow.tensorflow"), 1),
    "evaluation": (kind("WandbEvalCallback"), 1),
    "evaluation of a user": (kind("Mine", "mine", (kind("WandbEvalCallback", hooks=()),)), 1),
    "other package": (kind("WandbMetricsLogger", "wandbox"), 1),
}


@pytest.mark.parametrize("case", DECIDED)
def test_class_that_defines_the_hook_decides(case):
    cls, steps = DECIDED[case]
    callback = cls("a.keras") if issubclass(cls, keras.callbacks.ModelCheckpoint) else cls()
    assert steps_until_call(callback, 3, records_logs=True) == steps


def test_hook_that_was_assigned_is_a_users():
    callback = WandbMetricsLogger()
    callback.on_train_batch_end = lambda batch, logs=None: None
    assert steps_until_call(callback, 3, records_logs=True) == 1


def test_logger_that_writes_a_variable_keeps_what_it_wrote():
    class Writes(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = keras.Variable(0)

        def on_train_batch_end(self, batch, logs=None):
            self.seen.assign_add(1)

    Writes.__module__, Writes.__name__ = "wandb", "WandbMetricsLogger"
    writes = Writes()
    fit(unisono, [writes, calls := Calls()], epochs=1)
    assert int(writes.seen.numpy()) == STEPS > calls.number


def scalars(folder):
    """(tag, step) -> value, of all event files."""
    found = {}
    for path in tf.io.gfile.glob(f"{folder}/train/*"):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag.startswith(("batch_", "epoch_")):
                    found[value.tag, event.step] = tf.make_ndarray(value.tensor).item()
    return found


@pytest.mark.parametrize("kind", [keras.callbacks.TensorBoard, unisono.callbacks.TensorBoard])
@pytest.mark.parametrize("frequency", ["batch", 5])
@pytest.mark.long
def test_tensorboard_writes_each_step_in_few_calls(tmp_path, frequency, kind):
    calls = Calls()
    boards = [
        each(tmp_path / name, write_graph=False, update_freq=frequency)
        for each, name in ((keras.callbacks.TensorBoard, "keras"), (kind, "ours"))
    ]
    fit(keras, [boards[0]])
    fit(unisono, [boards[1], calls])
    expected, found = scalars(tmp_path / "keras"), scalars(tmp_path / "ours")
    more = {key for key in found.keys() - expected.keys() if key[0].startswith("epoch_")}
    assert found.keys() - more == expected.keys()
    assert not more or kind is unisono.callbacks.TensorBoard  # it writes each epoch
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-5), key
    assert len(found) >= EPOCHS * STEPS // (1 if frequency == "batch" else 5)
    assert calls.number < EPOCHS * STEPS / 2


@pytest.mark.parametrize("kind", [keras.callbacks.TensorBoard, unisono.callbacks.TensorBoard])
def test_tensorboard_that_measures_time_is_called_after_each_step(tmp_path, kind):
    timed = kind(tmp_path, update_freq=1, write_steps_per_second=True)
    assert steps_until_call(timed, 0, records_logs=True) == 1


@pytest.mark.parametrize("logs_batches", [False, True])
def test_validation_hook_of_neptune_is_called_each_step_only_where_it_logs(logs_batches):
    hooks = ("on_train_batch_end", "on_test_batch_end")
    neptune = kind("NeptuneCallback", "neptune_tensorflow_keras.impl", hooks=hooks)()
    neptune._log_on_batch = logs_batches
    assert steps_until_call(neptune, 0, "test") == (1 if logs_batches else None)
    assert steps_until_call(neptune, 0, "test", records_logs=True) is None
    assert only_reads_logs(neptune, "test") is logs_batches and not only_reads_logs(neptune, "predict")
    mine = kind("Mine", "__main__", (type(neptune),), ("on_test_batch_end",))()
    mine._log_on_batch = logs_batches
    assert steps_until_call(mine, 0, "test") == steps_until_call(mine, 0, "test", records_logs=True) == 1


class CometKerasCallback(keras.callbacks.Callback):
    """As that of Comet: logs each batch of a validation, and what the optimizer has then."""

    def __init__(self):
        super().__init__()
        self.seen, self.begun = [], []

    def on_test_batch_begin(self, batch, logs=None):
        self.begun.append(batch)

    def on_test_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        state = int(optimizer.iterations.numpy()), float(optimizer.learning_rate.numpy())
        self.seen.append((batch, *map(float, (logs["loss"], logs["mae"])), *state, len(self.begun)))


CometKerasCallback.__module__ = "comet_ml.callbacks.keras"


class EvaluationCalls(keras.callbacks.Callback):
    """Counts compiled calls of evaluations."""

    waits_for_compiled_calls, number = True, 0

    def on_test_batch_end(self, batch, logs=None):
        self.number += 1


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.long
def test_logger_reads_each_step_of_a_validation_in_few_calls(replicas):
    seen = []
    for package in (keras, unisono):
        comet, calls = CometKerasCallback(), EvaluationCalls()
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        several = package is unisono and replicas > 1
        with (mirrored(replicas) if several else tf.distribute.get_strategy()).scope():
            model = package.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
            model.compile(package.optimizers.Adam(schedule()), "mse", metrics=["mae"], jit_compile=False)
        data = X[:38], X[:38, :1]  # the last batch has two samples
        options = {"batch_size": 4, "verbose": 0, "callbacks": [comet, calls]}
        model.fit(*data, epochs=EPOCHS, shuffle=False, validation_data=(X, X[:, :1]), **options)
        model.evaluate(X, X[:, :1], **options)
        seen.append(comet.seen)
    assert len(seen[0]) == len(seen[1]) == (EPOCHS + 1) * STEPS
    for ours, theirs in zip(*seen[::-1]):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert calls.number < (EPOCHS + 1) * STEPS / 2


def test_logger_gets_the_steps_of_a_validation_before_an_error():
    @tf.function
    def check(x):
        tf.debugging.assert_less(x, 5.0, "too much")
        return x

    comet = CometKerasCallback()
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Lambda(check), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], jit_compile=False)
    x = np.ones((40, 3), "float32")
    model.evaluate(x, x[:, :1], batch_size=2, verbose=0, callbacks=[comet])
    comet.seen.clear()
    x[31] = 9.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="too much"):
        model.evaluate(x, x[:, :1], batch_size=2, verbose=0, callbacks=[comet])
    assert [each[0] for each in comet.seen] == list(range(15))


REAL = ("wandb", "mlflow", "swanlab", "comet_ml", "neptune_tensorflow_keras")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("package", REAL)
def test_real_tracker_logs_each_step_as_in_plain_keras(package, tmp_path):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install {package}")
    program = HELPERS / "real_trackers.py"
    command = [sys.executable, program, package, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found["unisono"]) == len(found["keras"]) >= EPOCHS * STEPS / 10
    np.testing.assert_allclose(found["unisono"], found["keras"], rtol=1e-5)
    assert found["calls"] < EPOCHS * STEPS / 2
