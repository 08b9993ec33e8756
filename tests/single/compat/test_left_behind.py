"""Unisono's and Keras' `fit` leave the process unchanged, however they end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono import callbacks
from unisono.distribute.workers.error_text import is_unisono_file

HOOKS = (
    *("on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_batch_end", "on_test_end", "on_epoch_end", "on_train_end"),
)
X = np.ones((4, 1), "float32")


class Fault(keras.callbacks.Callback):
    """Raises an error at one hook."""

    def __init__(self, hook, error):
        super().__init__()

        def fail(*arguments, **named):
            raise error

        setattr(self, hook, fail)


def process_state():
    return {
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "environment": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
        "threads": {thread.name for thread in threading.enumerate() if thread.name.startswith("unisono")},
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "summaries": tf.summary.should_record_summaries(),
        "strategy": tf.distribute.has_strategy(),
    }


def writers(folder):
    return [
        callbacks.BackupAndRestore(folder / "backup", save_freq=1),
        callbacks.TensorBoard(folder / "logs", update_freq=1, write_graph=False),
        callbacks.TrainingReport(folder / "report.html", gradient_norm=False),
        callbacks.JSONLines(folder / "log.jsonl"),
        callbacks.AnomalyReport(folder / "anomaly.json"),
    ]


@pytest.fixture(scope="module", params=["keras", "unisono"])
def model(request):
    made = {"keras": keras, "unisono": unisono}[request.param].Sequential(
        [keras.Input((1,)), keras.layers.Dense(1)]
    )
    made.compile("sgd", "mse", run_eagerly=True)
    return made


def fit(model, given, **arguments):
    model.fit(X, X, batch_size=2, verbose=0, validation_data=(X, X), callbacks=given, **arguments)


@pytest.mark.long
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_error_at_any_hook_leaves_nothing_in_the_process(model, error, tmp_path, capfd):
    before = process_state()
    for hook in HOOKS:
        fault = Fault(hook, error("mine"))
        try:
            fit(model, [*writers(tmp_path / hook), fault])
        except error as raised:
            assert "mine" in str(raised)
        else:
            raise AssertionError(hook)
        del fault
        gc.collect()
        assert process_state() == before, hook
        fit(model, writers(tmp_path / hook))  # the directory is released
        assert process_state() == before, hook


@pytest.mark.short("keras")
def test_signal_after_a_fit_that_failed_has_its_usual_effect(model, tmp_path):
    """Also while the error, and thus the frame of `fit`, is alive, and after several failed fits."""
    told = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    try:
        with pytest.raises(RuntimeError) as caught:
            fit(model, [*writers(tmp_path), Fault("on_epoch_end", RuntimeError())])
        with pytest.raises(RuntimeError) as other:
            fit(model, [callbacks.BackupAndRestore(tmp_path / "b"), Fault("on_epoch_end", RuntimeError())])
        signal.raise_signal(signal.SIGTERM)
        assert told == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        fit(model, writers(tmp_path))  # the directory is released although the error is alive
        del caught, other
        gc.collect()  # which ends the threads that write backups
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.short("unisono")
def test_signal_in_a_fit_saves_and_the_next_fit_is_not_stopped(model, tmp_path, capfd):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not told:
                told.append(batch)
                signal.raise_signal(signal.SIGINT)

    told, before = [], process_state()
    backup = callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(model, [backup, Interrupt()])
    where = f"unisono: SIGINT: training stopped at epoch 1, step 1; it was saved in {tmp_path / 'backup'}: the same command"
    assert capfd.readouterr().err.count(where) == 1
    assert backup.saves == 1 and process_state()["signals"] == before["signals"]
    fit(model, [backup, Interrupt()], epochs=2)
    assert told == [0] and process_state() == before


def test_interrupt_without_a_save_says_so_and_shows_only_the_frames_of_the_user(tmp_path, capfd):
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    made = unisono.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", run_eagerly=True)
    for given, said in (
        ([], "nothing was saved, as no BackupAndRestore was passed."),
        ([callbacks.BackupAndRestore(tmp_path)], "its backups stay as they were."),
    ):
        with pytest.raises(KeyboardInterrupt) as caught:
            fit(made, [Interrupt(), *given])
        assert f"unisono: SIGINT: ended at epoch 1, step 1; {said}" in capfd.readouterr().err
        ours = [frame for frame in caught.traceback if is_unisono_file(str(frame.path))]
        assert [frame.name for frame in caught.traceback][-1] == "on_train_batch_end"
        assert [frame.name for frame in ours] == ["fit"]
