"""Diagnosis during training: where a value stopped being finite, and what makes training slow."""

import functools
import json
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Clock, assert_equal, mirrored

import unisono
from unisono import callbacks as ours
from unisono.callbacks.diagnosis.slow_training import part_names, slow_input_text, straggler_text
from unisono.callbacks.trained_model import Times


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


def test_anomaly_in_the_middle_of_a_compiled_call_tells_the_step():
    x, y = data(bad_row=38)
    report = ours.AnomalyReport()
    model = make_model(tf.distribute.get_strategy())
    model.fit(x[:30], y[:30], batch_size=2, verbose=0)
    with pytest.warns(ours.AnomalyWarning):
        model.fit(x, y, batch_size=2, epochs=3, verbose=0, shuffle=False, callbacks=[report])
    assert (report.report["epoch"], report.report["step"]) == (0, 20)


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


def test_anomaly_report_changes_no_number_of_a_healthy_run_and_leaves_nothing_behind():
    x, y = data()
    weights = []
    for callbacks in ([], [ours.AnomalyReport()]):
        keras.utils.set_random_seed(1)
        model = make_model(mirrored(2))
        model.fit(x, y, batch_size=7, epochs=2, verbose=0, callbacks=callbacks)
        weights.append(model.get_weights())
    assert_equal(*weights)
    assert "_step_hooks" not in vars(model) and "_gradient_watch" not in vars(model.optimizer)


def test_anomaly_report_lets_overflow_under_a_loss_scale_pass():
    x, y = data()
    optimizer = unisono.mixed_precision.LossScaleOptimizer(
        unisono.optimizers.SGD(0.01), initial_scale=2.0**127
    )
    model = make_model(tf.distribute.get_strategy(), optimizer)
    model.fit(x, 1000 * y, batch_size=10, verbose=0, callbacks=[ours.AnomalyReport()])
    assert model.optimizer.skipped_steps.numpy() > 0


def test_slow_input_is_reported_with_its_share():
    workers = [{"input": 3.0, "compute": 1.0}]
    assert slow_input_text(workers, 0.2).startswith(
        "The last epoch spent 75% of the time of its steps (3.0 s)"
    )
    assert slow_input_text([{"input": 0.1, "compute": 1.0}], 0.2) == ""
    assert slow_input_text([{"input": 0.1, "compute": 1.0}, *workers], 0.2).startswith("Worker 1 spent 75%")


def test_slow_generator_warns_in_a_real_fit(monkeypatch):
    """The clock advances only while the fit waits for a batch."""
    clock, lock, lap, waits = Clock(), threading.Lock(), Times.lap, [True]

    def noted(times, part):
        with lock:
            waits[0] = part != "input"
            lap(times, part)

    monkeypatch.setattr(Times.__init__, "__defaults__", (clock.time,))
    monkeypatch.setattr(Times, "lap", noted)

    def batches():
        while True:
            with lock:
                clock.sleep(float(waits[0]))
            yield np.ones((4, 3), "float32"), np.ones((4, 1), "float32")

    model, options = make_model(tf.distribute.get_strategy()), {"steps_per_epoch": 8, "shuffle": False}
    with pytest.warns(ours.SlowInputWarning, match="prefetch"):
        model.fit(batches(), epochs=3, verbose=0, callbacks=[ours.Diagnosis(least_seconds=0.0)], **options)


def worker(waited, computing=10.0, waiting_for_input=0.1):
    return {"waited": waited, "compute": computing, "input": waiting_for_input, "callbacks": 0.0, "host": "h"}


def test_straggler_is_the_worker_that_waits_least():
    text = straggler_text([worker(4.0), worker(4.2), worker(0.1)], 0.2)
    assert text.startswith("Worker 2 on h makes the others wait for 40%") and "computes slowly" in text
    assert straggler_text([worker(0.5), worker(0.4), worker(0.3)], 0.2) == ""


def test_straggler_with_slow_input_is_distinguished():
    text = straggler_text([worker(4.0), worker(0.1, computing=6.0, waiting_for_input=4.5)], 0.2)
    assert text.startswith("Worker 1") and "its input is slow" in text


def test_straggler_where_waiting_is_not_measured_is_the_one_outside_the_steps():
    workers = [{"input": i, "compute": 10.0, "callbacks": 0.0, "host": "h"} for i in (0.1, 5.0, 0.1)]
    assert straggler_text(workers, 0.2).startswith("Worker 1 on h")


def test_retracing_names_the_part_of_the_batch_that_changes():
    def batches():
        for rows in (2, 3, 4, 5, 6, 7):
            yield np.ones((rows, 3), "float32"), np.ones((rows, 1), "float32")

    model, options = make_model(tf.distribute.get_strategy()), {"steps_per_epoch": 6, "shuffle": False}
    message = r"compiled 3 times.*`x` was float32 \(2, 3\), float32 \(3, 3\)"
    with pytest.warns(ours.RetracingWarning, match=message):
        model.fit(batches(), verbose=0, callbacks=[ours.Diagnosis(compilations=2)], **options)


def test_diagnosis_of_a_healthy_run_is_silent(monkeypatch):
    """The clock advances only while steps are computed."""
    clock, lap = Clock(), Times.lap

    def noted(times, part):
        clock.sleep(float(part == "compute"))
        lap(times, part)

    monkeypatch.setattr(Times.__init__, "__defaults__", (clock.time,))
    monkeypatch.setattr(Times, "lap", noted)
    x, y = data()
    make_model(mirrored(2)).fit(
        x, y, batch_size=7, epochs=2, verbose=0, callbacks=[ours.Diagnosis(least_seconds=0.0)]
    )


def test_part_names_of_nested_batches():
    assert part_names((1, 2, 3)) == ["x", "y", "sample_weight"]
    assert part_names(((1, 2), {"b": 1, "a": 2})) == ["x[0]", "x[1]", "y['a']", "y['b']"]
