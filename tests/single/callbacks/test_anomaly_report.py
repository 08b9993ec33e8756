"""`AnomalyReport` names where a value stopped being finite."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal, mirrored

import unisono
from unisono import callbacks as ours
from unisono.optimizers.stages.gradient_watch import watch_gradients
from unisono.optimizers.stages.step_hooks import step_hooks


def make_model(strategy, optimizer=None, activation="tanh"):
    with strategy.scope():
        first = keras.layers.Dense(4, activation=activation, name="first")
        model = unisono.Sequential([keras.Input((3,)), first, keras.layers.Dense(1, name="last")])
        model.compile(optimizer or unisono.optimizers.SGD(0.1), "mse")
    return model


def data(bad_row=None):
    x = np.random.default_rng(1).normal(size=(40, 3)).astype("float32")
    y = x[:, :1].copy()
    if bad_row is not None:
        x[bad_row, 1] = np.nan
    return x, y


@pytest.mark.parametrize("make_strategy", [tf.distribute.get_strategy, functools.partial(mirrored, 2)])
@pytest.mark.parametrize("kind", ["arrays", "dataset"])
@pytest.mark.short("arrays-get_strategy")
def test_anomaly_names_step_layer_and_batch_and_keeps_the_model_before_it(make_strategy, kind, tmp_path):
    x, y = data(bad_row=23)
    wanted = make_model(make_strategy())
    wanted.fit(x[:21], y[:21], batch_size=7, verbose=0, shuffle=False)
    keras.utils.set_random_seed(1)
    model = make_model(make_strategy())
    model.set_weights(wanted.get_weights())
    expected = model.get_weights()
    report = ours.AnomalyReport(tmp_path / "sub" / "anomaly.json")
    given = {"x": x[21:], "y": y[21:], "batch_size": 7}
    if kind == "dataset":
        given = {"x": tf.data.Dataset.from_tensor_slices((x[21:], y[21:])).batch(7)}
    with pytest.warns(ours.AnomalyWarning, match="step 1 of epoch 1 a gradient is not finite"):
        history = model.fit(**given, epochs=4, verbose=0, shuffle=False, callbacks=[report])
    assert len(history.epoch) == 1
    assert_equal(model.get_weights(), expected)
    assert "'sequential" in report.report["first"] and "first'" in report.report["first"]
    assert report.report["batch"][0]["nan"] == 1 and report.report["batch"][0]["shape"] == (7, 3)
    assert json.loads((tmp_path / "sub" / "anomaly.json").read_text())["step"] == 1


@pytest.mark.long
def test_anomaly_in_the_middle_of_a_compiled_call_tells_the_step():
    x, y = data(bad_row=38)
    report = ours.AnomalyReport()
    model = make_model(tf.distribute.get_strategy())
    model.fit(x[:30], y[:30], batch_size=2, verbose=0)
    with pytest.warns(ours.AnomalyWarning):
        model.fit(x, y, batch_size=2, epochs=3, verbose=0, shuffle=False, callbacks=[report])
    assert (report.report["epoch"], report.report["step"]) == (0, 20)


@pytest.mark.long
def test_anomaly_in_the_backward_pass_alone_is_found():
    @tf.custom_gradient
    def poisoned(x):
        return tf.identity(x), lambda upstream: upstream * np.float32("inf")

    report = ours.AnomalyReport()
    x, y = data()
    with pytest.warns(ours.AnomalyWarning):
        make_model(tf.distribute.get_strategy(), activation=poisoned).fit(x, y, verbose=0, callbacks=[report])
    assert report.report["gradients"] == ["sequential/first/bias", "sequential/first/kernel"]
    assert "gradient" in report.report["first"]


@pytest.mark.long
def test_anomaly_report_changes_no_number_of_a_healthy_run_and_leaves_nothing_behind():
    x, y = data()
    weights = []
    for callbacks in ([], [ours.AnomalyReport()]):
        keras.utils.set_random_seed(1)
        model = make_model(mirrored(2))
        model.fit(x, y, batch_size=7, epochs=2, verbose=0, callbacks=callbacks)
        weights.append(model.get_weights())
    assert_equal(*weights)
    assert step_hooks(model) == step_hooks(model.optimizer) == []


def test_anomaly_report_lets_overflow_under_a_loss_scale_pass():
    x, y = data()
    optimizer = unisono.mixed_precision.LossScaleOptimizer(
        unisono.optimizers.SGD(0.01), initial_scale=2.0**127
    )
    model = make_model(tf.distribute.get_strategy(), optimizer)
    model.fit(x, 1000 * y, batch_size=10, verbose=0, callbacks=[ours.AnomalyReport()])
    assert model.optimizer.skipped_steps.numpy() > 0


def test_watch_of_a_report_goes_on_beside_a_guard():
    model = make_model(tf.distribute.get_strategy())
    model.optimizer.build(model.trainable_variables)
    watch, guard = (watch_gradients(model.optimizer, guard=guard)[0] for guard in (False, True))
    assert watch_gradients(model.optimizer) == (watch, False) and step_hooks(model.optimizer) == [
        watch,
        guard,
    ]
    x, y = data()
    model.fit(x, y, batch_size=40, verbose=0)
    assert watch.norm == guard.norm > 0
