"""Unisono's callbacks outside its `fit`: in a custom loop with `keras.callbacks.CallbackList`, or in Keras' `fit`."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal, mirrored, scope
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import unisono
from unisono import callbacks as ours

X = np.random.default_rng(0).normal(size=(23, 4)).astype("float32")
STEPS, EPOCHS = 5, 2


def model_of(kind):
    """(model, strategy) of `kind`: "ours" (on two replicas), "plain" (Keras) or "plain, not compiled"."""
    keras.utils.clear_session()  # the same names as in a new process
    keras.utils.set_random_seed(7)
    strategy = mirrored(2) if kind == "ours" else None
    with scope(strategy):
        cls = unisono.Sequential if kind == "ours" else keras.Sequential
        model = cls([keras.Input((4,)), keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)])
        if kind != "plain, not compiled":
            model.compile(keras.optimizers.Adam(0.1), "mse")
    return model, strategy


def custom_step(model, strategy):
    """A step as in TensorFlow's guide on custom loops, with a summary."""
    optimizer = getattr(model, "optimizer", None) or keras.optimizers.Adam(0.1)
    strategy = strategy or tf.distribute.get_strategy()

    def on_replica(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - x[:, :1]))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def step(x):
        with strategy.scope():
            loss = strategy.reduce("MEAN", strategy.run(on_replica, (x,)), axis=None)
        tf.summary.scalar("inside", loss)
        return loss

    return lambda x: {"loss": float(step(tf.constant(x)))}


def drive(model, callbacks, step, first=(0, 0), stop_at=None, **params):
    """The loop: training, and validation after each epoch; it is interrupted at `stop_at` (epoch, step)."""
    every = keras.callbacks.CallbackList(callbacks, add_history=True, model=model, **params)
    every.on_train_begin()
    first = first() if callable(first) else first
    for epoch in range(first[0], EPOCHS):
        every.on_epoch_begin(epoch)
        for batch in range(first[1] if epoch == first[0] else 0, STEPS):
            if (epoch, batch) == stop_at:
                return
            every.on_train_batch_begin(batch)
            logs = step(X[batch * 5 : batch * 5 + 5])
            every.on_train_batch_end(batch, logs)
        every.on_test_begin()
        for batch in range(2):
            every.on_test_batch_begin(batch)
            every.on_test_batch_end(batch, {"loss": 1.0})
        every.on_test_end({"loss": 1.0})
        every.on_epoch_end(epoch, {**logs, "val_loss": 1.0})
    every.on_train_end(logs)


def events(folder):
    """{tag: [steps]} of the scalars in a log directory."""
    found = {}
    for path in sorted(folder.glob("events*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append(event.step)
    return found


@pytest.mark.parametrize("kind", ["ours", "plain", "plain, not compiled"])
@pytest.mark.short("plain, not compiled")
def test_every_callback_works_in_a_loop_of_the_users_own(kind, tmp_path, capsys):
    model, strategy = model_of(kind)
    callbacks = [
        ours.AnomalyReport(),
        ours.JSONLines(tmp_path / "log.jsonl", every=2),
        ours.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True),
        ours.Profiler(tmp_path / "profile", steps=(7, 8)),
        ours.ProgressBar(),
        ours.TensorBoard(tmp_path / "board", update_freq=2, histogram_freq=1),
        ours.TrainingReport(tmp_path / "report.html"),
    ]
    drive(model, callbacks, custom_step(model, strategy), epochs=EPOCHS, steps=STEPS)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in lines] == [(e, s) for e in (0, 1) for s in (2, 4, 5)]
    train, validation = events(tmp_path / "board" / "train"), events(tmp_path / "board" / "validation")
    assert train["inside"] == train["batch_loss"] == [2, 4, 6, 8, 10]
    assert train["epoch_loss"] == validation["epoch_loss"] == [0, 1]
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
    assert "Epoch 2/2" in capsys.readouterr().out
    report = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert [line["steps"] for line in report if line["event"] == "epoch"] == [STEPS] * EPOCHS
    assert report[-1]["how"] == "finished"
    model.load_weights(max(tmp_path.glob("*.h5")))


def test_every_callback_works_in_the_fit_of_plain_keras(tmp_path):
    model, _ = model_of("plain")
    callbacks = [
        ours.AnomalyReport(),
        ours.BackupAndRestore(tmp_path / "backup"),
        ours.JSONLines(tmp_path / "log.jsonl"),
        ours.ModelCheckpoint(tmp_path / "{epoch}.keras"),
        ours.TensorBoard(tmp_path / "board"),
        ours.TrainingReport(tmp_path / "report.html"),
    ]
    data = (X, X[:, :1])
    model.fit(*data, 5, epochs=EPOCHS, verbose=0, validation_data=data, callbacks=callbacks)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["step"]) for line in lines] == [(0, STEPS), (1, STEPS)]
    assert events(tmp_path / "board" / "train")["epoch_loss"] == [0, 1]
    assert (tmp_path / "2.keras").exists() and not (tmp_path / "backup").exists()


@pytest.mark.parametrize("kind", ["ours", "plain"])
@pytest.mark.long
def test_loop_of_the_users_own_resumes_with_the_bits_of_one_that_ran_through(kind, tmp_path):
    ends = []
    for stop_at in (None, (1, 3)):
        model, strategy = model_of(kind)
        schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch))
        backup = ours.BackupAndRestore(tmp_path / f"{stop_at}", save_freq=2, background=False)
        drive(model, [schedule, backup], custom_step(model, strategy), stop_at=stop_at)
        if stop_at:
            backup.on_fit_exit()  # releases what the end of a process releases
            model, strategy = model_of(kind)
            backup = ours.BackupAndRestore(tmp_path / f"{stop_at}", save_freq=2)
            begin = lambda backup=backup: (backup.initial_epoch, backup.initial_step)  # noqa: E731
            drive(model, [schedule, backup], custom_step(model, strategy), begin)
            assert begin() == (1, 3)
        ends.append(model.get_weights() + [np.asarray(v) for v in model.optimizer.variables])
    assert_equal(*ends)


def test_backup_of_a_loop_without_the_optimizer_is_rejected(tmp_path):
    model, _ = model_of("plain, not compiled")
    with pytest.raises(
        RuntimeError, match="needs a model that is built, and compiled with the loop's optimizer"
    ):
        drive(model, [ours.BackupAndRestore(tmp_path)], lambda x: {})


def test_anomaly_is_found_in_a_loop_of_the_users_own():
    model, _ = model_of("ours")
    anomaly = ours.AnomalyReport()

    def step(x):
        if model.stop_training:
            return {"loss": 0.0}
        x = x.copy()
        x[0, 0] = np.nan if model.optimizer.iterations == 3 else x[0, 0]
        return model.train_on_batch(x, x[:, :1], return_dict=True)

    with pytest.warns(ours.AnomalyWarning):
        drive(model, [anomaly], step)
    assert (anomaly.report["epoch"], anomaly.report["step"]) == (0, 4)
    assert anomaly.report["gradients"]
    assert all(np.isfinite(w).all() for w in model.get_weights())
