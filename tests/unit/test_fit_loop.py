"""The fit loop with a step that only counts: the order and the number of hooks, compiled calls and steps."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.trainer.run.fit_loop import Runner


class CountingFunction:
    """Replaces the compiled steps: records the chunks it receives."""

    def __init__(self, events: list[Any], name: str, fails_at: int = -1) -> None:
        self.events, self.name, self.steps, self.fails_at = events, name, 0, fails_at

        self.alone, self.training, self.backend, self.recorder = True, name == "run", "graph", None
        self.predicts, self.recorders = False, dict[Any, Any]()
        self.model = types.SimpleNamespace(
            run_eagerly=True, jit_compile=False, _auto_jit=True, _runner=Runner()
        )

    def __call__(self, execution: Any) -> tuple[int, dict[str, Any]]:
        for chunk in execution.chunks:
            self.steps += chunk.steps
            if self.steps == self.fails_at:
                raise RuntimeError("the step failed")
            rows = "" if chunk.batch_size is None else f"x{chunk.batch_size}"
            self.events.append(f"{self.name}:{chunk.steps}{rows}")
        return execution.steps, {"loss": tf.constant(float(self.steps))}

    def hooks(self) -> list[Any]:
        return []

    def compilations(self) -> int:
        return 1

    def use(self, backend: str, reason: str) -> None:
        """Keep the backend."""

    def device(self) -> str:
        return ""


def recorder(events: list[Any]) -> keras.callbacks.Callback:
    """Records the hooks of `fit`."""
    return keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: events.append("train begin"),
        on_train_end=lambda logs: events.append(f"train end {logs['loss']:.0f}"),
        on_epoch_begin=lambda epoch, logs: events.append(f"epoch {epoch} begin"),
        on_epoch_end=lambda epoch, logs: events.append(f"epoch {epoch} end {sorted(logs)}"),
        on_train_batch_begin=lambda batch, logs: events.append(f"batch {batch} begin"),
        on_train_batch_end=lambda batch, logs: events.append(f"batch {batch} end {logs['loss']:.0f}"),
        on_test_begin=lambda logs: events.append("test begin"),
        on_test_end=lambda logs: events.append("test end"),
    )


class EpochsOnly(keras.callbacks.Callback):
    """Records the epochs; its batch hooks run when it requires."""

    def __init__(self, events: list[Any], every: int | None = None) -> None:
        super().__init__()
        self.events, self.every = events, every

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(f"epoch {epoch} end")

    def steps_until_call(self, step):
        return None if self.every is None else self.every - step % self.every


ROWS = np.zeros((10, 2), "float32")


@pytest.fixture
def events() -> list[Any]:
    """What happened in a fit, in order."""
    return []


def counting_model(events: list[Any], fails_at: int = -1, **compile_arguments: Any) -> Any:
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compile_arguments)
    model.train_function = CountingFunction(events, "run", fails_at)
    model.test_function = CountingFunction(events, "test")
    return model


def fit(model: Any, *callbacks: Any, **arguments: Any) -> Any:
    return model.fit(ROWS, ROWS[:, :1], batch_size=4, verbose=0, callbacks=list(callbacks), **arguments)


def test_hooks_of_two_epochs_come_in_keras_order(events):
    fit(counting_model(events), recorder(events), epochs=2, validation_data=(ROWS, ROWS[:, :1]))
    epoch = ["batch 0 begin", "run:1", "batch 0 end 1", "batch 1 begin", "run:1", "batch 1 end 2"]
    epoch += ["batch 2 begin", "run:1", "batch 2 end 3", "test begin"]
    assert events[: 2 + len(epoch)] == ["train begin", "epoch 0 begin", *epoch]
    assert [e for e in events if e.startswith("epoch")] == [
        "epoch 0 begin",
        "epoch 0 end ['loss', 'val_loss']",
        "epoch 1 begin",
        "epoch 1 end ['loss', 'val_loss']",
    ]
    assert events.count("test begin") == events.count("test end") == 2
    assert events.index("test end") < events.index("epoch 0 end ['loss', 'val_loss']")
    assert events[-1] == "train end 6"


def test_nobody_asks_and_a_short_fit_has_one_layout(events):
    model = counting_model(events, steps_per_execution=8)
    fit(model, EpochsOnly(events))
    assert events == ["run:3", "epoch 0 end"]


def test_nobody_asks_and_the_last_partial_batch_of_a_long_fit_is_a_chunk_of_its_own(events, monkeypatch):
    monkeypatch.setattr("unisono.trainer.run.xla.xla_rule.FIXED_SIZES", 3)
    model = counting_model(events, steps_per_execution=8)
    fit(model, EpochsOnly(events))
    assert events == ["run:2x4", "run:1", "epoch 0 end"]


def test_compiled_calls_end_where_a_callback_calls(events):
    model = counting_model(events)
    model.fit(
        np.zeros((64, 2)), np.zeros((64, 1)), batch_size=4, verbose=0, callbacks=[EpochsOnly(events, 5)]
    )
    steps = [int(event.split(":")[1].split("x")[0]) for event in events if event.startswith("run")]
    assert sum(steps) == 16
    assert {5, 10, 15} <= set(np.cumsum(steps))


def test_initial_epoch_and_stop_training_are_kept(events):
    model = counting_model(events)
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(model, "stop_training", epoch == 4)
    )
    history = fit(model, stop, epochs=9, initial_epoch=3)
    assert history.epoch == [3, 4]
    assert history.history["loss"] == [3.0, 6.0]


def test_stop_in_mid_epoch_ends_after_this_batch_and_keeps_the_logs(events):
    model = counting_model(events)
    stop = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", batch == 1)
    )
    history = fit(model, stop, epochs=3)
    assert events == ["run:1", "run:1"]
    assert history.history["loss"] == [2.0]


def test_validation_freq_chooses_the_epochs(events):
    model = counting_model(events)
    fit(model, EpochsOnly(events), epochs=4, validation_freq=[2, 4], validation_split=0.2)
    order = [event for event in events if not event.startswith("run")]
    assert [order.index(f"epoch {i} end") for i in range(4)] == sorted(
        order.index(f"epoch {i} end") for i in range(4)
    )
    before = [order[: order.index(f"epoch {i} end")].count("test:1x2") for i in range(4)]
    assert before == [0, 1, 1, 2]


def test_no_epochs_run_no_step_but_the_frame(events):
    model = counting_model(events)
    calls: list[str] = []
    frame = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: calls.append("begin"), on_train_end=lambda logs: calls.append("end")
    )
    assert fit(model, frame, epochs=0).history == {}
    assert not events and calls == ["begin", "end"]


def test_failed_step_leaves_no_state_behind(events):
    model = counting_model(events, fails_at=2)
    exits: list[str] = []
    callback = EpochsOnly(events, every=1)
    callback.on_fit_exit = lambda: exits.append("exit")
    with pytest.raises(RuntimeError, match="the step failed"):
        fit(model, callback)
    assert model.fit_state is None
    assert exits == ["exit"]


def test_fit_state_tells_callbacks_where_the_loop_stands(events):
    model = counting_model(events)
    seen: list[tuple[int, int]] = []
    look = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((model.fit_state.epoch, model.fit_state.step))
    )
    fit(model, look, epochs=2)
    assert seen == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]


def test_evaluate_and_predict_call_their_hooks_in_order(events):
    model = counting_model(events)
    names: list[str] = []
    hooks = keras.callbacks.LambdaCallback(
        on_test_batch_end=lambda batch, logs: names.append(f"test {batch}"),
        on_predict_begin=lambda logs: names.append("predict begin"),
        on_predict_batch_end=lambda batch, logs: names.append(f"predict {batch} {logs['outputs'].shape}"),
        on_predict_end=lambda logs: names.append("predict end"),
    )
    model.evaluate(ROWS, ROWS[:, :1], batch_size=4, verbose=0, callbacks=[hooks])
    assert names == ["test 0", "test 1", "test 2"]
    names.clear()
    model.predict(ROWS, batch_size=8, verbose=0, callbacks=[hooks])
    assert names == ["predict begin", "predict 0 (8, 1)", "predict 1 (2, 1)", "predict end"]


def calls_in(function: Any) -> int:
    """The number of calls of Python and C functions."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


MOST_CALLS = {"fit": 6500, "evaluate": 4400, "predict": 2900, "train_on_batch": 5300}
"""Of a method that is called again and again; a quarter more than were counted."""


@pytest.mark.long
def test_a_second_call_of_a_method_does_little_next_to_its_steps():
    model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    x = np.ones((64, 4), "float32")
    arguments = {
        "fit": (x, x[:, :1], 8, 1, 0),
        "evaluate": (x, x[:, :1], 8, 0),
        "predict": (x, 64, 0),
        "train_on_batch": (x, x[:, :1]),
    }
    for name, given in arguments.items():
        method = functools.partial(getattr(model, name), *given)
        for _ in range(3):
            method()
        calls = calls_in(method)
        assert calls < MOST_CALLS[name], (name, calls)


@pytest.mark.long
def test_metrics_are_reset_as_their_class_says():
    class Offset(keras.metrics.Mean):
        def reset_state(self) -> None:
            super().reset_state()
            self.total.assign(7.0)

    def last_wins(y: Any, p: Any) -> Any:
        return keras.ops.mean(p, -1)

    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(
        "sgd", "mse", metrics=["mae", keras.metrics.RootMeanSquaredError(), last_wins, keras.metrics.AUC()]
    )
    model.own = Offset()
    x = np.ones((4, 2), "float32")
    model.evaluate(x, x[:, :1], verbose=0)
    assert any(np.any(variable.numpy()) for variable in model.metrics_variables)
    model.reset_metrics()
    assert float(model.own.total) == 7.0
    others = [variable for variable in model.metrics_variables if variable is not model.own.total]
    assert not any(np.any(variable.numpy()) for variable in others)
