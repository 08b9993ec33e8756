"""The loop warns once of a callback that makes every step a compiled call, and of repeated compilation."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Clock, mirrored

import unisono
from unisono import callbacks as ours
from unisono.callbacks.call_schedule import batch_hook_of
from unisono.state.trained_model import Times
from unisono.trainer.inputs import Chunk
from unisono.trainer.run import slow_steps
from unisono.trainer.run.loops.compiled_calls import CompiledCall

X = np.ones((40, 3), "float32")


class LossPrinter(keras.callbacks.Callback):
    clock, seconds = Clock(), 0.0

    def on_train_batch_end(self, batch, logs=None):
        self.clock.sleep(self.seconds)


def model_on(strategy):
    with strategy.scope():
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def warnings_of(monkeypatch, callback, compute=0.0, call=0.8, batches=30, strategy=None):
    """The warnings of a fit in which a compiled call takes `compute` seconds, and one without a step `call` of that."""
    clock = LossPrinter.clock = Clock()
    monkeypatch.setattr(Times.__init__, "__defaults__", (clock.time,))
    model = model_on(strategy or tf.distribute.get_strategy())
    x = np.ones((2 * batches, 3), "float32")
    given = {"x": x, "y": x[:, :1], "batch_size": 2}

    class Computes(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            kind = type(self.model.train_function)
            run = kind.__call__

            def slow(function, compiled):
                clock.sleep(compute * (1.0 if compiled.steps else call))
                return run(function, compiled)

            monkeypatch.setattr(kind, "__call__", slow)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(**given, epochs=2, verbose=0, callbacks=[Computes(), callback])
    monkeypatch.undo()
    assert int(model.optimizer.iterations) == 2 * batches, "an empty call trains nothing"
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("replicas", [1, 2])
def test_callback_after_every_step_is_named_once_with_what_the_call_costs(monkeypatch, replicas):
    strategy = mirrored(2) if replicas == 2 else tf.distribute.get_strategy()
    [text] = warnings_of(monkeypatch, LossPrinter(), compute=0.1, strategy=strategy)
    assert text.startswith("`LossPrinter.on_train_batch_end` runs after every step")
    assert "the call and the callbacks take 80 of 100 ms" in text and "only_reads_logs" in text


def test_class_that_defines_the_hook_is_named(monkeypatch):
    class Quiet(LossPrinter):
        pass

    hook = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    board = keras.callbacks.TensorBoard(update_freq=1)
    for callback, name in ((Quiet(), "LossPrinter"), (hook, "LambdaCallback")):
        assert batch_hook_of(callback) == (f"{name}.on_train_batch_end", True)
    assert batch_hook_of(board) == ("TensorBoard.on_train_batch_end", False)


def test_what_the_callback_itself_costs_counts(monkeypatch):
    monkeypatch.setattr(LossPrinter, "seconds", 0.1)
    [text] = warnings_of(monkeypatch, LossPrinter(), compute=0.1, call=0.0)
    assert "100 of 200 ms" in text


def test_callback_that_costs_little_or_is_not_called_often_is_not_mentioned(monkeypatch):
    class Seldom(LossPrinter):
        def steps_until_call(self, step):
            return 10

    class Reads(LossPrinter):
        only_reads_logs = True

    assert not warnings_of(monkeypatch, LossPrinter(), compute=0.1, call=0.1)
    for callback in (Seldom(), Reads(), keras.callbacks.History()):
        assert not warnings_of(monkeypatch, callback, compute=0.1)


def test_own_callback_is_mentioned_only_where_it_costs(monkeypatch, tmp_path):
    cheap, dear = (ours.BackupAndRestore(tmp_path / name, save_freq=1) for name in ("cheap", "dear"))
    assert not warnings_of(monkeypatch, cheap, compute=0.1, call=0.1)
    [text] = warnings_of(monkeypatch, dear, compute=0.1)
    assert "BackupAndRestore.on_train_batch_end" in text and "longer interval" in text


def changing_batches():
    for rows in range(2, 10):
        yield np.ones((rows, 3), "float32"), np.ones((rows, 1), "float32")


def test_repeated_compilation_names_the_part_of_the_batch_that_changes(monkeypatch):
    monkeypatch.setattr(slow_steps, "MOST_COMPILATIONS", 2)
    message = r"compiled 3 times.*`x` was float32 \(2, 3\), float32 \(3, 3\)"
    with pytest.warns(UserWarning, match=message) as caught:
        model_on(tf.distribute.get_strategy()).fit(changing_batches(), steps_per_epoch=8, verbose=0)
    assert len(caught) == 1


def test_callback_that_makes_the_step_again_is_the_cause():
    class Again(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.make_train_function(force=True)

    x = np.ones((12, 3), "float32")
    with pytest.warns(UserWarning, match="compiled 5 times.*a callback calls `compile`"):
        model_on(tf.distribute.get_strategy()).fit(x, x[:, :1], batch_size=2, verbose=0, callbacks=[Again()])


def test_as_many_graphs_as_a_fit_needs_are_not_mentioned():
    """A few batch sizes, and from then on one graph for all: a warning would be an error here."""
    for data in ({"x": changing_batches(), "steps_per_epoch": 8}, {"x": X, "y": X[:, :1], "batch_size": 7}):
        model = model_on(tf.distribute.get_strategy())
        model.fit(**data, epochs=1, verbose=0)
        assert 1 <= model.train_function.compilations() <= slow_steps.MOST_COMPILATIONS


def test_parts_of_a_batch_have_their_names():
    spec = ((1, 2), {"b": 1, "a": 2})
    call = CompiledCall([Chunk([tf.zeros([n]) for n in (1, 2, 3, 4)], 1, None, lambda inputs, i: inputs)])
    found = {name: shape for name, shape in slow_steps.layout(spec, call)}
    assert found == {
        "x[0]": "float32 (1,)",
        "x[1]": "float32 (2,)",
        "y['a']": "float32 (3,)",
        "y['b']": "float32 (4,)",
    }
