"""Callbacks receive the logs of every step of a compiled call; nothing is computed here."""

import keras
import numpy as np

from unisono.callbacks.call_schedule import logs_of_one_step, replay_steps
from unisono.callbacks.fit_state import FitState


class Reader(keras.callbacks.Callback):
    only_reads_logs = True

    def __init__(self, state):
        super().__init__()
        self.state, self.seen = state, []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("begin", batch, self.state.step))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, logs["loss"], self.state.step))


class Vectors(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_steps_end(self, first, logs):
        self.seen.append((first, {name: column.tolist() for name, column in logs.items()}))
        logs["loss"][:] = 0.0  # each callback has its own arrays


def told(**how):
    state = FitState(step=4)
    reader, vectors, others = Reader(state), Vectors(), Vectors()
    logs = {"loss": np.array([3.0, 2.0, 1.0])}
    replay_steps([reader, vectors, others], state, 4, logs, **how)
    assert state.step == 7
    assert vectors.seen == others.seen == [(4, {"loss": [3.0, 2.0, 1.0]})]
    return reader.seen


def test_readers_are_called_for_all_steps_but_the_end_of_the_last_which_the_loop_tells_everyone():
    seen = [(4, 3.0, 5), ("begin", 5, 5), (5, 2.0, 6), ("begin", 6, 6)]
    assert told(replayed=True) == seen


def test_before_an_error_the_last_step_is_reported_too():
    assert told(replayed=True, all_done=True)[-2:] == [("begin", 6, 6), (6, 1.0, 7)]


def test_readers_are_left_alone_where_compiled_calls_have_a_fixed_length():
    assert told(replayed=False) == []


def test_logs_of_one_step_are_vectors_of_one_value():
    found = logs_of_one_step({"loss": 0.5, "columns": [1.0, 2.0]})
    assert {name: column.tolist() for name, column in found.items()} == {
        "loss": [0.5],
        "columns": [[1.0, 2.0]],
    }
