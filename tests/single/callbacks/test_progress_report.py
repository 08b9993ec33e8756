"""TrainingReport and JSONLines in a real `fit`: on one device, on two replicas, and after a resume."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Stop, StopAt, mirrored

import unisono
from unisono.callbacks.report import training_report
from unisono.callbacks.report.page import render
from unisono.callbacks.report.runs import read_run


def make_model(strategy=None):
    with (strategy or tf.distribute.get_strategy()).scope():
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(unisono.optimizers.SGD(0.1), "mse")
    return model


X = np.random.default_rng(1).normal(size=(20, 3)).astype("float32")
Y = X[:, :1]


@pytest.mark.parametrize("make_strategy", [tf.distribute.get_strategy, functools.partial(mirrored, 2)])
@pytest.mark.long
def test_report_holds_curves_norm_times_and_facts(make_strategy, tmp_path):
    model = make_model(make_strategy())
    report = unisono.callbacks.TrainingReport(tmp_path / "r.html", title="T")
    model.fit(X, Y, batch_size=7, epochs=2, verbose=0, validation_data=(X, Y), callbacks=[report])
    run = read_run(tmp_path / "r.jsonl")
    assert run.how == "finished" and [e["epoch"] for e in run.epochs] == [0, 1]
    assert {"loss", "val_loss"} <= set(run.epochs[-1]["logs"])
    assert run.epochs[-1]["gradient_norm"] > 0
    assert {"input", "compute", "callbacks", "validation"} <= set(run.seconds())
    assert run.facts["strategy"]["strategy"] in ("none", "MirroredStrategy")
    assert run.facts["configuration"]["input"] == "arrays"
    assert run.facts["strategy"]["replicas"] == model.distribute_strategy.num_replicas_in_sync
    assert run.facts["configuration"]["optimizer"] == "SGD"
    assert run.facts["configuration"]["keras.utils.set_random_seed"].isdecimal()
    page = (tmp_path / "r.html").read_text()
    assert "<h1>T</h1>" in page and "finished" in page and 'http-equiv="refresh"' not in page


def test_config_and_notes_are_in_the_lines_without_passwords(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "71")
    config = {"data": "https://me:my-key@host/d", "rate": np.float32(0.5), "sizes": (1, 2)}
    report = unisono.callbacks.TrainingReport(tmp_path / "r.html", config=config, notes="<b>mine</b>\ud800")
    make_model().fit(X, Y, verbose=0, callbacks=[report])
    facts = read_run(tmp_path / "r.jsonl").facts
    assert facts["config"] == {"data": "https://***@host/d", "rate": 0.5, "sizes": [1, 2]}
    assert facts["notes"] == "<b>mine</b>\ud800" and facts["machine"]["Slurm job"] == "71"
    page = (tmp_path / "r.html").read_text()
    assert "&lt;b&gt;mine&lt;/b&gt;?</p>" in page and "https://***@host/d" in page and "my-key" not in page


@pytest.mark.long
def test_values_within_an_epoch_are_those_of_its_steps_and_only_of_means(tmp_path):
    keras.utils.set_random_seed(3)
    model = make_model()
    metrics = ["mae", keras.metrics.RootMeanSquaredError()]
    model.compile(unisono.optimizers.SGD(0.0), "mse", metrics=metrics, steps_per_execution=2)
    report = unisono.callbacks.TrainingReport(tmp_path / "r.html")
    model.fit(X, Y, batch_size=5, epochs=2, verbose=0, shuffle=False, callbacks=[report])
    errors = (model.predict(X, verbose=0) - Y).reshape(2, 10)
    run = read_run(tmp_path / "r.jsonl")
    places, values = zip(*run.recent("mae"))
    assert places == (0.5, 1.0, 1.5, 2.0)
    np.testing.assert_allclose(values, np.tile(np.abs(errors).mean(axis=1), 2), rtol=1e-5)
    np.testing.assert_allclose([v for _, v in run.recent("loss")][:2], (errors**2).mean(axis=1), rtol=1e-5)
    assert {name for line in run.lines for name in line["means"]} == {"loss", "mae"}


def test_report_changes_no_number(tmp_path):
    weights = []
    for callbacks in ([], [unisono.callbacks.TrainingReport(tmp_path / "r.html")]):
        keras.utils.set_random_seed(3)
        model = make_model(mirrored(2))
        model.fit(X, Y, batch_size=7, epochs=2, verbose=0, callbacks=callbacks)
        weights.append(model.get_weights())
    np.testing.assert_array_equal(weights[0][0], weights[1][0])


def test_gradient_norm_is_that_of_the_global_gradient(tmp_path):
    model = make_model(mirrored(2))
    kernel = model.get_weights()[0]
    report = unisono.callbacks.TrainingReport(tmp_path / "r.html")
    model.fit(X, Y, batch_size=20, epochs=1, verbose=0, shuffle=False, callbacks=[report])
    error = X @ kernel - Y
    gradient = np.concatenate([(2 * X.T @ error / len(X)).ravel(), [2 * error.mean()]])
    norm = read_run(tmp_path / "r.jsonl").epochs[-1]["gradient_norm"]
    assert norm == pytest.approx(np.linalg.norm(gradient), rel=1e-5)


@pytest.mark.long
def test_report_of_a_fit_that_fails_says_so(tmp_path):
    class Fails(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise RuntimeError("stop here")

    report = unisono.callbacks.TrainingReport(tmp_path / "r.html")
    with pytest.raises(RuntimeError, match="stop here"):
        make_model().fit(X, Y, epochs=2, verbose=0, callbacks=[report, Fails()])
    assert read_run(tmp_path / "r.jsonl").how == "ended by an error"


def test_report_that_is_slow_to_write_is_written_seldom(tmp_path, monkeypatch):
    now, pages = [0.0], []

    def clock():
        now[0] += 0.01
        return now[0]

    def slow_render(runs, **options):
        now[0] += 5.0
        pages.append(runs[0].epochs_done)
        return render(runs, **options)

    monkeypatch.setattr(training_report, "render", slow_render)
    report = unisono.callbacks.TrainingReport(tmp_path / "r.html", refresh_seconds=0, clock=clock)
    make_model().fit(X, Y, batch_size=20, epochs=20, verbose=0, callbacks=[report])
    assert len(pages) == 2 and pages[-1] == 20  # at once, and at the end
    assert (tmp_path / "r.html").read_text() == render([read_run(tmp_path / "r.jsonl")], refresh_seconds=0)
    assert sum(line["report_seconds"] for line in read_run(tmp_path / "r.jsonl").epochs) > 5


def test_json_lines_by_epoch_and_by_step(tmp_path):
    model = make_model()
    callbacks = [
        unisono.callbacks.JSONLines(tmp_path / "epochs.jsonl", clock=lambda: 5.0),
        unisono.callbacks.JSONLines(tmp_path / "steps.jsonl", every=2, clock=lambda: 5.0),
    ]
    history = model.fit(X, Y, batch_size=5, epochs=2, verbose=0, callbacks=callbacks).history
    epochs = [json.loads(line) for line in (tmp_path / "epochs.jsonl").read_text().splitlines()]
    assert epochs == [{"epoch": e, "step": 4, "time": 5.0, "loss": history["loss"][e]} for e in (0, 1)]
    steps = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [(s["epoch"], s["step"]) for s in steps if s.get("steps")] == [(0, 2), (0, 4), (1, 2), (1, 4)]


@pytest.mark.long
def test_logs_of_a_resumed_run_are_those_of_a_run_that_was_never_killed(tmp_path):
    def train(folder, dies_at=None):
        keras.utils.set_random_seed(5)
        callbacks = [
            unisono.callbacks.JSONLines(folder / "log.jsonl", every=1, clock=lambda: 0.0),
            unisono.callbacks.TrainingReport(folder / "report.html"),
            unisono.callbacks.BackupAndRestore(folder / "backup", save_freq=3, delete_checkpoint=False),
        ]
        if dies_at:
            callbacks.append(StopAt(dies_at))
        make_model().fit(X, Y, batch_size=5, epochs=3, verbose=0, callbacks=callbacks)

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    train(tmp_path / "a")
    with pytest.raises(Stop):
        train(tmp_path / "b", dies_at=8)
    train(tmp_path / "b")
    assert (tmp_path / "b" / "log.jsonl").read_text() == (tmp_path / "a" / "log.jsonl").read_text()
    run = read_run(tmp_path / "b" / "report.jsonl")
    assert len(run.restarts) == 1 and run.how == "finished"
    assert [e["epoch"] for e in run.epochs] == [0, 1, 2]
