"""`fit(validation_sanity_steps=n)` finds mistakes before the first epoch, and changes no bit of the training run."""

import functools

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from without_side_effects import Shuffling, X, Y, dataset, drawn, make_model

import unisono
from unisono import callbacks

KINDS = {
    "arrays": lambda: {"validation_data": (X, Y), "validation_batch_size": 4},
    "split": lambda: {"validation_split": 0.4},
    "dataset": lambda: {"validation_data": dataset()},
    "cached": lambda: {"validation_data": dataset().cache()},
    "PyDataset": lambda: {"validation_data": Shuffling()},
    "few steps": lambda: {"validation_data": dataset().repeat(), "validation_steps": 2},
}


def trained(kind, steps, *extra, strategy=None):
    model = make_model(strategy)
    data = KINDS[kind]()
    log = []
    note = keras.callbacks.LambdaCallback(
        on_test_batch_end=lambda batch, logs: log.append(("test", batch)),
        on_train_batch_end=lambda batch, logs: log.append(("train", batch)),
    )
    data |= {"callbacks": [note, *extra], "validation_sanity_steps": steps}
    history = model.fit(X, Y, batch_size=5, epochs=2, verbose=0, **data)
    values = [np.asarray(tf.convert_to_tensor(v.value)).tobytes() for v in model.variables]
    count = int(model.layers[2].count.numpy())
    return values, count, history.history, drawn(), log


@pytest.mark.short("dataset", "arrays", "split")
@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_has_the_same_bits(kind, tmp_path):
    assert trained(kind, 2) == trained(kind, 0)


@pytest.mark.long
def test_what_follows_has_the_same_bits_on_two_replicas_and_with_backups(tmp_path):
    two = [trained("dataset", steps, strategy=helpers.mirrored(2)) for steps in (0, 2)]
    assert two[0] == two[1]
    board = [callbacks.TensorBoard(tmp_path / "board", update_freq=1) for _ in range(2)]
    assert trained("dataset", 2, board[0]) == trained("dataset", 0, board[1])
    assert board[0]._global_test_batch == board[1]._global_test_batch > 0
    resumed = helpers.resumed(functools.partial(trained, "dataset", 2), tmp_path / "b", 4)
    alone = trained("dataset", 0)
    assert resumed[:4] == alone[:4] and len(resumed[4]) < len(alone[4])


def test_mistake_shows_before_the_first_step():
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

    def test_step(data):
        raise ZeroDivisionError("a mistake")

    model.compile("sgd", "mse", run_eagerly=True)
    model.test_step = test_step
    before = model.get_weights()
    for steps, error in ((1, ZeroDivisionError), (0, ZeroDivisionError)):
        with pytest.raises(error, match="a mistake"):
            model.fit(X, Y, validation_data=(X, Y), verbose=0, validation_sanity_steps=steps)
        assert (int(model.optimizer.iterations) == 0) == bool(steps)
        if steps:
            np.testing.assert_array_equal(model.get_weights()[0], before[0])
