"""The first and the last line of a fit, printed by the chief with `verbose` 1 and 2."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Stop, mirrored
from meshes import strategy_for

import unisono

X = np.random.default_rng(1).normal(size=(16, 3)).astype("float32")
Y = X[:, :1]


def model_of(strategy=None, layers=(), **how):
    keras.utils.set_random_seed(1)
    with (strategy or tf.distribute.get_strategy()).scope():
        model = unisono.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
        model.compile(unisono.optimizers.SGD(0.1), "mse", **{"jit_compile": False, **how})
    return model


def lines(capsys, model, *data, **how):
    model.fit(*data, **{"batch_size": 8, "epochs": 2, "verbose": 2, **how})
    return capsys.readouterr().out.splitlines()


def unwrapped(printed):
    return " ".join(line.strip() for line in printed)


@pytest.mark.parametrize("verbose", [0, 1, 2, 3, "auto"])
def test_lines_are_printed_once_each_with_verbose_1_and_2(capsys, verbose):
    printed = lines(capsys, model_of(), X, Y, verbose=verbose, validation_data=(X, Y))
    first = [line for line in printed if line.startswith("Training on ")]
    last = [line for line in printed if line.startswith("2 epochs in ")]
    if verbose in (0, 3):
        assert not first and not last
        assert verbose == 3 or not printed
        return
    assert (
        first
        == [printed[0]]
        == ["Training on CPU:0, 4 parameters, batch 8, float32, graph (`jit_compile=False`)"]
    )
    assert last == [printed[-1]]
    assert "samples/s, best val_loss 0." in last[0] and last[0].endswith(" in epoch 2")
    assert all(len(line) < 80 for line in (*first, *last))


def test_first_line_says_how_many_of_the_parameters_are_trained(capsys):
    model = model_of(layers=[keras.layers.Dense(2000, name="frozen", trainable=False)], run_eagerly=True)
    first = lines(capsys, model, X, Y, epochs=1)[0]
    assert first == "Training on CPU:0, 2001 of 10k parameters, batch 8, float32, eager steps"


def test_first_line_of_a_model_that_is_never_called_counts_its_parameters(capsys):
    class Around(unisono.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self.inner(data[0]) - data[1]))
            weights = self.inner.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return {"loss": loss}

    model = Around(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile("sgd", run_eagerly=True)
    first = lines(capsys, model, X, Y, epochs=1)[0]
    assert first.startswith("Training on CPU:0, 4 parameters, batch 8, ")


@pytest.mark.long
def test_first_line_of_a_mesh_says_how_its_first_axis_divides_the_batch(capsys):
    strategy = strategy_for((2, 2), {".*up/kernel": (None, "model")})
    model = model_of(strategy, [keras.layers.Dense(4, name="up")])
    first = unwrapped(lines(capsys, model, X[:8], Y[:8], batch_size=8, epochs=1)[:3])
    assert (
        "4 CPUs (MeshStrategy, mesh {'batch': 2, 'model': 2}), 21 parameters, batch 8 = 2 x 4, float32"
        in first
    )


SPLITS = {(2, 8): "2 x 4", (3, 8): "2 x 3 + 1 x 2", (4, 5): "1 x 2 + 3 x 1"}


@pytest.mark.parametrize("replicas, batch", SPLITS)
def test_first_line_names_strategy_and_what_each_replica_has(capsys, replicas, batch):
    model = model_of(mirrored(replicas), run_eagerly=True)
    printed = lines(capsys, model, X[:batch], Y[:batch], batch_size=batch, epochs=1)
    first = unwrapped(printed[:2]).partition(" 1/1")[0]
    where = f"{replicas} CPUs (MirroredStrategy, {replicas} replicas)"
    assert (
        first.startswith(f"Training on {where}, 4 parameters, batch {batch} = {SPLITS[replicas, batch]},")
        and "float32, eager steps" in first
    )
    assert all(len(line) < 80 for line in printed)


def test_sizes_that_are_not_known_are_left_out(capsys):
    def batches():
        while True:
            yield X, Y

    printed = lines(capsys, model_of(run_eagerly=True), batches(), batch_size=None, steps_per_epoch=2)
    assert printed[0] in (
        f"Training on CPU:0, 4 parameters, {b}float32, eager steps" for b in ("", "batch 16, ")
    )
    assert printed[-1].startswith("2 epochs in ")


def test_run_that_was_resumed_says_where_and_counts_its_own_epochs(capsys, tmp_path):
    class Kill(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise Stop

    def backup():
        return unisono.callbacks.BackupAndRestore(tmp_path / "b", save_freq=1)

    with pytest.raises(Stop):
        lines(capsys, model_of(run_eagerly=True), X, Y, epochs=4, callbacks=[backup(), Kill()])
    killed = capsys.readouterr().out
    assert f"backups in {tmp_path}" in unwrapped(killed.splitlines()) and "epochs in" not in killed
    printed = lines(capsys, model_of(run_eagerly=True), X, Y, epochs=4, callbacks=[backup()])
    assert "resumed at epoch 2, step 2" in unwrapped(printed)
    assert printed[-1].startswith("3 epochs in ")


def test_initial_epoch_counts_the_epochs_that_run(capsys):
    printed = lines(capsys, model_of(run_eagerly=True), X, Y, initial_epoch=3, epochs=4)
    assert printed[-1].startswith("1 epoch in ") and printed[-1].endswith("in epoch 4")


def test_fit_without_an_epoch_prints_nothing(capsys):
    assert lines(capsys, model_of(run_eagerly=True), X, Y, initial_epoch=4, epochs=4) == []


class Scores(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = float([1.0, 3.0, 2.0, 2.5][epoch])


def test_monitored_log_comes_before_the_losses(capsys):
    stop = keras.callbacks.EarlyStopping(monitor="score", mode="max", patience=2)
    printed = lines(capsys, model_of(run_eagerly=True), X, Y, epochs=9, callbacks=[Scores(), stop])
    assert printed[-2].startswith("4 of 9 epochs in ") and printed[-1] == "  best score 3 in epoch 2"


def test_loss_that_is_never_finite_has_no_best_value(capsys):
    printed = lines(capsys, model_of(run_eagerly=True), X * np.nan, Y)
    assert "best" not in printed[-1]


def test_last_line_names_the_callback_that_ended_the_fit(capsys):
    stop = keras.callbacks.EarlyStopping("loss", min_delta=10.0, patience=1)
    said = unwrapped(lines(capsys, model_of(run_eagerly=True), X, Y, epochs=5, callbacks=[stop])[-2:])
    assert "2 of 5 epochs in " in said and ", ended by EarlyStopping, best loss " in said
    said = unwrapped(lines(capsys, model_of(run_eagerly=True), X, Y, epochs=2, callbacks=[stop])[-2:])
    assert "2 epochs in" in said and "ended by" not in said, "all epochs were run"
