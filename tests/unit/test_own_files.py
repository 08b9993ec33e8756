"""No callback removes or overwrites a file that it did not write."""

from __future__ import annotations

import json
import re

import keras
import numpy as np
import pytest

import unisono
from unisono import callbacks
from unisono.callbacks import SaveError, safe_file
from unisono.callbacks.backup.files.owner import OWNER_FILE
from unisono.callbacks.monitoring.profiler import _find_unused_path
from unisono.commands import main

X, Y = np.ones((4, 1), "float32"), np.ones((4, 1), "float32")


@pytest.fixture(scope="module")
def model():
    made = unisono.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    made.compile("sgd", "mse", run_eagerly=True)
    return made


def fit(model, callback, **arguments):
    steps = []
    count = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: steps.append(batch))
    try:
        model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=[callback, count], **arguments)
    finally:
        fit.steps = len(steps)


def report(path):
    return callbacks.TrainingReport(path, gradient_norm=False)


FILES = {  # name -> (the callback for a folder, the user's files that it would overwrite)
    "JSONLines": (lambda f: callbacks.JSONLines(f / "a.jsonl"), ["a.jsonl"]),
    "TrainingReport": (lambda f: report(f / "a.html"), ["a.html", "a.jsonl"]),
    "AnomalyReport": (lambda f: callbacks.AnomalyReport(f / "a.json"), ["a.json"]),
    "BackupAndRestore": (lambda f: callbacks.BackupAndRestore(f), [OWNER_FILE]),
}
TEXTS = [b"notes of mine\n", b'{"epoch": 1}\n', b"PK\3\4" + bytes(40), b"[" * 5000]


@pytest.mark.parametrize("name", FILES)
def test_file_of_the_users_is_left_and_named_before_the_first_step(name, tmp_path, model):
    make, files = FILES[name]
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        for text in TEXTS:
            path.write_bytes(text)
            with pytest.raises(SaveError, match=r"`(path|directory)` of .* would overwrite") as caught:
                fit(model, make(tmp_path))
            assert str(path) in str(caught.value) and "move the file" in str(caught.value)
            assert path.read_bytes() == text and fit.steps == 0
        path.unlink()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("file", ["m.keras", "m.weights.h5", "002.keras"])
@pytest.mark.short("m.weights.h5")
def test_checkpoint_keeps_a_file_of_the_users_under_another_name(file, tmp_path, model):
    template = file.replace("002", "{epoch:03d}")

    def make():
        return callbacks.ModelCheckpoint(tmp_path / template, save_weights_only=file.endswith(".h5"))

    model.save_weights(tmp_path / "mine.weights.h5")
    texts = [*TEXTS, (tmp_path / "mine.weights.h5").read_bytes()]
    for number, text in enumerate(texts):
        (tmp_path / file).write_bytes(text)
        kept = f"{file}.old{number or ''}"
        with pytest.warns(UserWarning, match=f"renamed .*{file}, which it did not write, to .*{kept}"):
            fit(model, make())
        assert (tmp_path / kept).read_bytes() == text
        assert callbacks.verify_checkpoint(tmp_path / file) and fit.steps == 3
    before = sorted(tmp_path.iterdir())
    fit(model, make())  # it overwrites its own files, and empty ones
    (tmp_path / file).write_bytes(b"")
    fit(model, make())
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", [name for name in FILES if name != "AnomalyReport"])
@pytest.mark.short("BackupAndRestore", "JSONLines")
def test_own_files_are_overwritten_by_a_second_run(name, tmp_path, model):
    make, files = FILES[name]
    for _ in range(2):
        fit(model, make(tmp_path))
        assert fit.steps == 3
    for file in files if name != "BackupAndRestore" else ():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"")  # overwriting it loses nothing
    fit(model, make(tmp_path))


def test_own_anomaly_report_is_overwritten(tmp_path, model):
    for _ in range(2):
        with pytest.warns(callbacks.AnomalyWarning):
            callback = callbacks.AnomalyReport(tmp_path / "a.json")
            model.fit(X * np.nan, Y, batch_size=4, verbose=0, callbacks=[callback])
        assert json.loads((tmp_path / "a.json").read_text())["step"] == 1


def test_cleaning_up_backups_leaves_other_files_of_such_names(tmp_path, model):
    mine = [tmp_path / f"backup-{name}.unisono" for name in ("000001", "000001.part-1", "000009.part-1")]
    for path in mine:
        path.write_text("mine")
    with pytest.warns(UserWarning):
        fit(model, callbacks.BackupAndRestore(tmp_path, keep=1, on_damaged="restart"))
    assert sorted(tmp_path.iterdir()) == sorted(mine)


def test_profiles_of_one_second_have_different_names(tmp_path):
    names = []
    for _ in range(3):
        path = _find_unused_path(tmp_path / "worker-0.xplane.pb")
        path.touch()
        names.append(path.name)
    assert names == ["worker-0.xplane.pb", "2-worker-0.xplane.pb", "3-worker-0.xplane.pb"]


@pytest.mark.long
def test_command_overwrites_pages_alone(tmp_path, model, capsys):
    fit(model, report(tmp_path / "a.html"))
    assert [main(["report", str(tmp_path)]) for _ in range(2)] == [0, 0]
    (tmp_path / "b.html").write_text("mine")
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "b.html")]) == 2
    assert "--output would overwrite" in capsys.readouterr().err
    assert (tmp_path / "b.html").read_text() == "mine"


def test_a_mark_counts_at_the_beginning_and_at_the_end_of_a_file_only(tmp_path):
    """One mechanism for all callbacks: `safe_file.is_own`."""
    line = b'{"epoch": 0, "step": 4, "time": 1.5, "loss": 2.0}\n'
    logs = safe_file.begins_with_json("epoch", "step", "time")
    end = re.compile(rb"written by us\n\Z")
    for text, begins, ends in (
        (line + bytes(3 << 20), True, False),
        (bytes(3 << 20) + line, False, False),
        (b" " + line, False, False),
        (b'{"a": 1, "epoch": 0, "step": 4, "time": 1.5}\n', False, False),
        (b'{"epoch": 0}\n{"step": 4, "time": 1.5}\n', False, False),
        (b"{" * 100_000, False, False),
        (bytes(3 << 20) + b"written by us\n", False, True),
        (b"written by us\n" + bytes(3 << 20), False, False),
        (b"written by us\n\n", False, False),
    ):
        (tmp_path / "file").write_bytes(text)
        assert [safe_file.is_own(tmp_path / "file", mark) for mark in (logs, end)] == [begins, ends], text[
            :60
        ]
