"""The progress bar: its output, and that it never shortens compiled calls."""

import io
import itertools
import os
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Batches, source_of

import unisono
from unisono.callbacks.call_schedule import steps_until_call
from unisono.callbacks.monitoring.fit_lines import speeds
from unisono.callbacks.monitoring.progress import ProgressBar, Rate
from unisono.state.trained_model import FitState


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def fileno(self):
        return 1


def set_columns(monkeypatch, columns):
    monkeypatch.setattr(os, "get_terminal_size", lambda file: os.terminal_size((columns, 24)))


class Source:
    batch_size = 10
    per_worker = False


class FakeModel:
    def __init__(self, **state):
        self.fit_state = FitState(source=Source(), **state)


def make_model(**how):
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **how)
    return model


def bar_of(stream, ticks, steps=4, epochs=2, **state):
    bar = ProgressBar(stream, clock=lambda: next(ticks))
    bar.set_params({"verbose": 1, "epochs": epochs, "steps": steps})
    bar.set_model(FakeModel(steps_per_epoch=steps, **state))
    bar.on_train_begin()
    return bar


def test_rate_first_compiled_call_compiles_is_left_out_once_there_is_another():
    rate = Rate(began=0.0, first_step=0, compiles=True)
    rate.update(2, 10.0)
    assert rate.seconds_per_step == 5.0
    rate.update(12, 11.0)
    assert rate.seconds_per_step == pytest.approx(0.1)


def test_rate_resumed_epoch_counts_only_the_steps_of_this_run():
    rate = Rate(began=0.0, first_step=90, compiles=False)
    rate.update(100, 5.0)
    assert rate.seconds_per_step == 0.5


def test_bar_in_a_file_is_one_plain_line_per_epoch():
    out, ticks = io.StringIO(), itertools.count(0, 0.25)
    bar = bar_of(out, ticks)
    bar.on_epoch_begin(0)
    for last in (1, 3):
        bar.on_train_batch_end(last, {"loss": 0.5})
    bar.on_epoch_end(0, {"loss": 0.5, "loss_scale": 32768.0, "skipped_steps": 1})
    lines = out.getvalue().splitlines()
    assert lines[0] == "Epoch 1/2"
    assert len(lines) == 2
    assert lines[1].startswith("4/4 ━━━━━━━━━━━━━━━━━━━━ ")
    assert lines[1].endswith(" - loss: 0.5000 - loss_scale: 32768 - skipped_steps: 1")
    assert "samples/s" in lines[1] and "\r" not in out.getvalue() and "\33" not in out.getvalue()


def test_bar_in_a_file_writes_a_line_every_30_seconds():
    out, now = io.StringIO(), [0.0]
    bar = bar_of(out, iter(lambda: now[0], None), steps=100, epochs=1)
    bar.on_epoch_begin(0)
    for step in range(61):
        now[0] = float(step)
        bar.on_train_batch_end(step, {})
    assert len(out.getvalue().splitlines()) == 2
    assert "39s left" not in out.getvalue().splitlines()[0] and "left" in out.getvalue()


def test_bar_on_a_terminal_redraws_one_line():
    out = Terminal()
    bar = bar_of(out, itertools.count(0, 1.0))
    bar.on_epoch_begin(0)
    bar.on_train_batch_end(0, {"loss": 1.0})
    bar.on_train_batch_end(3, {"loss": 1.0})
    bar.on_epoch_end(0, {"loss": 1.0})
    assert out.getvalue().count("\n") == 2
    assert out.getvalue().count("\r") == 4, "the first says that the step compiles"


def test_bar_says_that_the_step_compiles_until_the_second_compiled_call():
    out = Terminal()
    bar = bar_of(out, itertools.count(0, 1.0), steps=100)
    bar.on_epoch_begin(0)
    bar.on_train_batch_end(0, {"loss": 1.0})
    compiling = [text for text in out.getvalue().split("\r") if "/100" in text]
    assert len(compiling) == 2 and all("compiling…" in each and "left" not in each for each in compiling)
    bar.on_train_batch_end(9, {"loss": 1.0})
    bar.on_epoch_end(0, {"loss": 1.0})
    bar.on_epoch_begin(1)
    assert "compiling" not in out.getvalue().partition(" 10/100")[2]


def test_bar_shows_the_time_left_of_the_epoch_and_of_the_run():
    out, now = Terminal(), [0.0]
    bar = bar_of(out, iter(lambda: now[0], None), steps=10, epochs=3)
    bar.model.fit_state.epochs = 3
    bar.on_epoch_begin(0)
    for step in range(2):
        now[0] += 1.0
        bar.on_train_batch_end(step, {})
    assert "8.0 s left (run 28.0 s) 1.0 s/step" in out.getvalue()
    bar.model.fit_state.epoch = 2
    bar.model.fit_state.times.seconds["validation"] = 8.0
    bar.on_epoch_begin(2)
    now[0] += 1.0
    bar.on_train_batch_end(0, {})
    assert "9.0 s left 1.0 s/step" in out.getvalue()
    bar.model.fit_state.epoch = 1
    bar.on_epoch_begin(1)
    now[0] += 1.0
    bar.on_train_batch_end(0, {})
    assert "9.0 s left (run 27.0 s)" in out.getvalue(), "with a validation of 8 s after the next epoch"
    now[0] += 9.0
    bar.on_train_batch_end(9, {})
    assert "10.0 s 1.0 s/step" in out.getvalue().rpartition("\r")[2], "no time is left to be shown"


@pytest.mark.parametrize("last", [False, True])
def test_bar_with_two_metrics_fits_80_columns(monkeypatch, last):
    out, now = Terminal(), [0.0]
    bar = bar_of(out, iter(lambda: now[0], None), steps=1563, epochs=30)
    bar.model.fit_state.epochs = 30
    set_columns(monkeypatch, 80)
    bar.on_epoch_begin(0)
    logs = {"accuracy": 0.76, "loss": 0.5207}
    for step in (0, 1400):
        now[0] += 12.3
        bar.on_train_batch_end(step, logs)
    if last:
        bar.on_epoch_end(0, logs)
    line = re.sub(r"\x1b\[\d+m", "", out.getvalue().split("\r")[-1]).rstrip()
    assert len(line) < 80 and line.endswith(" - accuracy: 0.7600 - loss: 0.5207")


def test_bar_in_a_narrow_terminal_shows_whole_metrics_and_how_many_more(monkeypatch):
    logs = {"loss": 0.12345, "accuracy": 0.5, "true_positives": 12.0, "skipped": 0.0}
    shown = list(zip(logs, ["0.1235", "0.5000", "12", "0.0000"]))
    for columns in range(20, 160):
        out = Terminal()
        bar = bar_of(out, itertools.count(0, 1.0))
        set_columns(monkeypatch, columns)
        bar.on_epoch_begin(0)
        bar.on_train_batch_end(1, logs)
        line = re.sub(r"\x1b\[\d+m", "", out.getvalue().split("\r")[-1]).rstrip()
        assert len(line) < columns
        found = re.findall(r" - (\w+): (\S+)", line)
        assert found == shown[: len(found)]
        if columns > 80 and len(found) < len(logs):
            assert line.endswith(f" - +{len(logs) - len(found)}")
    assert len(found) == len(logs)


def test_last_line_of_an_epoch_breaks_between_metrics(monkeypatch):
    logs = {f"metric_{n}": 0.5 + n for n in range(8)}
    for columns in range(30, 160, 10):
        out = Terminal()
        bar = bar_of(out, itertools.count(0, 1.0))
        set_columns(monkeypatch, columns)
        bar.on_epoch_begin(0)
        bar.on_epoch_end(0, logs)
        lines = re.sub(r"\x1b\[\d+m", "", out.getvalue().split("\r")[-1]).rstrip().split("\n")
        assert max(map(len, lines)) < columns
        assert [each for line in lines for each in re.findall(r" - (\w+): \d\.\d{4}", line)] == list(logs)


@pytest.mark.parametrize("kind", ["generator", "PyDataset", "dataset"])
def test_bar_shows_samples_per_second_where_sizes_may_differ(kind):
    x = np.zeros((4, 3), "float32")
    data = {
        "generator": lambda: ((x, x[:, :1]) for _ in range(2)),
        "PyDataset": lambda: Batches([(x, x[:, :1])] * 2),
        "dataset": lambda: tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(3),
    }[kind]()
    out = io.StringIO()
    make_model(run_eagerly=True).fit(data, callbacks=[ProgressBar(out)])
    assert " samples/s" in out.getvalue()


TEXTS, TABLE = np.zeros((4, 6), "int32"), np.zeros((4, 6), "float32")


@pytest.mark.parametrize(
    ("x", "tokens"),
    [
        pytest.param(TEXTS, 24, id="tokens"),
        pytest.param((TEXTS, TEXTS > 0), 24, id="tokens and a mask"),
        pytest.param(TABLE, None, id="table"),
        pytest.param((TEXTS, TABLE), None, id="text and table"),
        pytest.param((TEXTS, TEXTS[:, :2]), None, id="two lengths"),
        pytest.param(TEXTS[:, :1], None, id="one number a sample"),
        pytest.param(TEXTS[:, 0], None, id="one axis"),
        pytest.param(tf.sparse.from_dense(TEXTS), None, id="sparse"),
        pytest.param(tf.RaggedTensor.from_tensor(TEXTS), None, id="ragged"),
        pytest.param(tf.data.Dataset.from_tensors((TEXTS, TEXTS, TABLE, TABLE)), 24, id="four parts"),
    ],
)
def test_speed_of_text_is_in_tokens_too(x, tokens):
    source = source_of(x, batch_size=None if isinstance(x, tf.data.Dataset) else 4)
    source.batch_size = 4
    assert speeds(FitState(source=source), 1.0)[1:] == ([f"{tokens} tokens/s"] if tokens else [])


def test_bar_of_unknown_length_learns_it():
    out = io.StringIO()
    bar = bar_of(out, itertools.count(0, 31.0), steps=None)
    bar.on_epoch_begin(0)
    bar.on_train_batch_end(6, {})
    bar.on_epoch_end(0, {})
    bar.model.fit_state.steps_per_epoch = 7
    bar.on_epoch_begin(1)
    bar.on_train_batch_end(2, {})
    lines = out.getvalue().splitlines()
    assert "7/Unknown" in lines[1] and lines[2].startswith("7/7") and lines[4].startswith("3/7")


def test_bar_of_a_resumed_epoch_says_where_it_begins():
    out = io.StringIO()
    bar = bar_of(out, itertools.count(0, 1.0), step=3)
    bar.on_epoch_begin(1)
    assert out.getvalue() == "Epoch 2/2 (resumed after step 3)\n"


def show_an_epoch(out):
    bar = bar_of(out, itertools.count(0, 40.0))
    bar.on_epoch_begin(0)
    bar.on_train_batch_end(3, {})
    bar.on_epoch_end(0, {})


def test_bar_where_the_encoding_has_no_line_characters_uses_plain_ones():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    show_an_epoch(out)
    out.seek(0)
    assert "4/4 ==================== " in out.read()


def test_bar_on_a_worker_that_is_not_the_chief_prints_nothing(monkeypatch):
    cluster = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    out = io.StringIO()
    show_an_epoch(out)
    assert out.getvalue() == ""


@pytest.mark.parametrize("phase", ["train", "test", "predict"])
def test_bar_never_shortens_a_compiled_call(phase):
    assert steps_until_call(ProgressBar(), 0, phase) is None


def test_fit_evaluate_predict_print_with_the_bar(capsys):
    model, x = make_model(), np.ones((8, 3), "float32")
    model.fit(x, x[:, :1], batch_size=2, epochs=2, validation_data=(x, x[:, :1]))
    printed = capsys.readouterr().out
    assert printed.count("4/4") == 2 and "Epoch 2/2" in printed and "val_loss" in printed
    model.evaluate(x, x[:, :1], batch_size=4)
    assert "2/2" in capsys.readouterr().out
    model.predict(x, batch_size=8)
    assert "1/1" in capsys.readouterr().out


def test_fit_verbose_0_prints_nothing_and_2_one_line_and_3_the_epochs(capsys):
    model, x = make_model(), np.ones((8, 3), "float32")
    printed = []
    for verbose, epochs in ((0, 1), (2, 1), (3, 2)):
        model.fit(x, x[:, :1], batch_size=2, verbose=verbose, epochs=epochs)
        printed.append(capsys.readouterr().out)
    assert printed[0] == ""
    lines = printed[1].replace("\n  ", " ").splitlines()  # the first one is wrapped
    assert len(lines) == 3, "the first line, the epoch, the last line"
    assert printed[2] == "Epoch 1/2\nEpoch 2/2\n"


def test_fast_dev_run_is_one_step_of_training_and_one_of_validation(tmp_path):
    model, x = make_model(), np.ones((8, 3), "float32")
    seen = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append("train"),
        on_epoch_end=lambda epoch, logs: seen.append(sorted(logs)),
    )
    count.on_test_batch_end = lambda batch, logs: seen.append("test")
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras")
    history = model.fit(
        tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2),
        epochs=5,
        verbose=0,
        callbacks=[count, best],
        validation_data=(x, x[:, :1]),
        validation_batch_size=2,
        shuffle=False,
        validation_freq=3,
        fast_dev_run=True,
    )
    assert seen == ["train", "test", ["loss", "val_loss"]]
    assert int(model.optimizer.iterations) == 1
    assert len(history.history["val_loss"]) == 1
    assert not (tmp_path / "best.keras").exists()


def test_fast_dev_run_with_steps_per_execution_is_one_step_and_leaves_the_setting():
    model, x = make_model(steps_per_execution=4), np.ones((8, 3), "float32")
    model.fit(x, x[:, :1], batch_size=2, verbose=0, fast_dev_run=True)
    assert int(model.optimizer.iterations) == 1
    assert model.steps_per_execution == 4
