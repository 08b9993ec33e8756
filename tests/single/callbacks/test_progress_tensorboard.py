"""TensorBoard: every value once and at its step, whatever the strategy and the steps per compiled call."""

import collections
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import mirrored
from tensorboard.compat.proto.event_pb2 import Event

import unisono
from unisono.optimizers.stages.step_hooks import step_hooks


class Tells(keras.layers.Layer):
    def call(self, x):
        tf.summary.scalar("inside", tf.reduce_mean(x))
        return x


def written(folder):
    steps = collections.defaultdict(list)
    for path in sorted(folder.glob("events*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = Event.FromString(record.numpy())
            if event.graph_def:
                steps["graph"].append(event.step)
            for value in event.summary.value:
                steps[value.tag.rpartition("/")[2]].append(event.step)
    return steps


def make_model(strategy):
    with strategy.scope():
        model = unisono.Sequential([keras.Input((3,)), Tells(), keras.layers.Dense(1)])
        model.compile(unisono.optimizers.SGD(0.1), "mse")
    return model


X = np.random.default_rng(1).normal(size=(50, 3)).astype("float32")
Y = X[:, :1]


@pytest.mark.parametrize("make_strategy", [tf.distribute.get_strategy, functools.partial(mirrored, 2)])
@pytest.mark.falls_back
@pytest.mark.short("get_strategy")
def test_summaries_inside_layers_are_written_once_at_their_steps(make_strategy, tmp_path):
    board = unisono.callbacks.TensorBoard(tmp_path, update_freq=3, write_steps_per_second=True)
    model = make_model(make_strategy())
    model.fit(X, Y, batch_size=7, epochs=2, verbose=0, validation_data=(X, Y), callbacks=[board])
    train, validation = written(tmp_path / "train"), written(tmp_path / "validation")
    assert train["inside"] == train["batch_loss"] == train["batch_steps_per_second"] == [3, 6, 9, 12, 15]
    assert train["epoch_loss"] == validation["epoch_loss"] == train["epoch_learning_rate"] == [0, 1]
    assert validation["evaluation_loss_vs_iterations"] == [8, 16]
    assert validation["inside"] == [3, 6, 9, 12, 15]
    assert len(train["graph"]) == 1
    assert step_hooks(model) == step_hooks(model, "test") == []


@pytest.mark.long
def test_by_epoch_histograms_are_written_and_summaries_inside_are_not(tmp_path):
    board = unisono.callbacks.TensorBoard(tmp_path, histogram_freq=1)
    make_model(mirrored(2)).fit(X, Y, batch_size=7, epochs=2, verbose=0, callbacks=[board])
    train = written(tmp_path / "train")
    assert train["histogram"] == [0, 0, 1, 1] and train["epoch_loss"] == [0, 1]
    assert "inside" not in train


@pytest.mark.falls_back
@pytest.mark.long
def test_a_second_fit_writes_into_its_own_folder(tmp_path):
    model = make_model(mirrored(2))
    for name in ("a", "b"):
        board = unisono.callbacks.TensorBoard(tmp_path / name, update_freq=4)
        model.fit(X, Y, batch_size=7, verbose=0, callbacks=[board])
        assert written(tmp_path / name / "train")["inside"] == [4, 8]


def test_a_profile_covers_the_steps_that_were_asked_for(tmp_path):
    board = unisono.callbacks.TensorBoard(tmp_path, profile_batch=(3, 5), write_graph=False)
    seen = []
    board.set_params({})
    watch = keras.callbacks.LambdaCallback()
    start, stop = board._start_trace, board._stop_trace
    board._start_trace = lambda: (seen.append(board._global_train_batch + 1), start())
    board._stop_trace = lambda: (seen.append(board._global_train_batch), stop())
    make_model(tf.distribute.get_strategy()).fit(X, Y, batch_size=7, verbose=0, callbacks=[board, watch])
    assert seen == [3, 5]
    assert list((tmp_path / "train" / "plugins" / "profile").glob("*/*.xplane.pb"))


def test_evaluate_alone_writes_its_results(tmp_path):
    model = make_model(tf.distribute.get_strategy())
    board = unisono.callbacks.TensorBoard(tmp_path, update_freq=2)
    model.evaluate(X, Y, batch_size=10, verbose=0, callbacks=[board])
    found = written(tmp_path / "validation")
    assert found["evaluation_loss_vs_iterations"] == [0] and found["inside"] == [2, 4]
