"""`fit` skips, rejects or resumes from a backup with a valid checksum and a field of the wrong type."""

from __future__ import annotations

import copy
import json
import shutil
import warnings

import keras
import numpy as np
import pytest
from broken_files import parts_of, with_manifest
from disk import rng_of
from helpers import Stop

import unisono
from unisono import callbacks
from unisono.callbacks import BackupMismatchError
from unisono.callbacks.backup.files import store

X = np.ones((12, 2), "float32")
WRONG = [None, True, -1, 2**70, 0.5, "x", [], [[]], {}]
WRONG += [{"$array": 0}, {"$tuple": [1]}, {"$float": "nan"}, {"$bytes": 0}]
SOURCE, CALLBACKS = ("content", "workers", 0, "source"), ("content", "callbacks")
NEVER_RESUMED = [
    (("summary",), []),
    ((*SOURCE, "step"), 3),
    ((*SOURCE, "epoch"), 2**70),
    (("content", "calendar", "step_logs", "loss"), "x"),
    (("content", "workers", 0, "random", "python", "gauss"), "x"),
    ((*CALLBACKS, 0, "state"), [[]]),
    ((*CALLBACKS, 0, "state", "wait"), None),
    ((*CALLBACKS, 0, "state", "best"), "x"),
    ((*CALLBACKS, 0, "state", "best_weights"), [{"$array": 0}]),
    ((*CALLBACKS, 2, "state", "keys"), [[]]),
    ((*CALLBACKS, 3, "state", "best"), [1]),
    ((*CALLBACKS, 4, "state", "size"), -1),
    ((*CALLBACKS, 5, "state", "history", "loss"), 0.5),
    ((*CALLBACKS, 5, "state", "epoch"), None),
]
"""With an error in a later hook, or with another training run, if the form of their place were not checked."""


class Stopper(keras.callbacks.Callback):
    """Stops a fit before a given step of an epoch, or before its first step (None)."""

    def __init__(self, at=None):
        super().__init__()
        self.at, self.epoch = at, None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if self.at in (None, (self.epoch, batch)):
            raise Stop


def places(value, place=()):
    first = range(min(3, len(value))) if isinstance(value, list) else ()
    for key in value if isinstance(value, dict) else first:
        yield (*place, key)
        yield from places(value[key], (*place, key))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(fit in a directory, a directory with one backup of that fit)"""
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)

    def fit(folder, stopper):
        given = [
            keras.callbacks.EarlyStopping("loss", restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("loss"),
            keras.callbacks.CSVLogger(folder / "log.csv"),
            callbacks.ModelCheckpoint(folder / "{epoch}.keras", monitor="loss", keep_last=1),
            callbacks.JSONLines(folder / "log.jsonl"),
            callbacks.BackupAndRestore(folder / "b", save_freq=1, background=False),
            stopper,
        ]
        keras.utils.set_random_seed(1)
        store._finished.clear()  # each is the first fit of its process
        arguments = {"batch_size": 4, "epochs": 2, "verbose": 0, "validation_data": (X, X[:, :1])}
        try:
            model.fit(X, X[:, :1], callbacks=given, **arguments)
        finally:
            if given[2].csv_file is not None:  # Keras leaves it open after an error
                given[2].csv_file.close()

    folder = tmp_path_factory.mktemp("good")
    with pytest.raises(Stop):
        fit(folder, Stopper((1, 2)))
    return fit, folder


@pytest.mark.short("20")
@pytest.mark.parametrize("cases", [20, 150])
def test_forged_backup_is_skipped_or_rejected_by_name_or_resumed(trained, tmp_path, capfd, cases):
    fit, good = trained
    path = max((good / "b").glob("backup-*"))
    manifest, data = parts_of(path.read_bytes())
    rng, outcomes = rng_of("forged fits", 1), []
    shutil.copytree(good, tmp_path / "right")
    with pytest.raises(Stop):
        fit(tmp_path / "right", Stopper())
    assert "Resuming from" in capfd.readouterr().out
    drawn = rng.sample([(p, v) for p in places(manifest) for v in WRONG], cases)
    for place, value in [*NEVER_RESUMED, *drawn]:
        changed = copy.deepcopy(manifest)
        inner = changed
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = copy.deepcopy(value)
        folder = tmp_path / "run"
        shutil.copytree(good, folder)
        (folder / "b" / path.name).write_bytes(with_manifest(json.dumps(changed).encode(), data))
        outcome = "resumed"
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                fit(folder, Stopper())
            except (OSError, BackupMismatchError) as error:
                outcome = "refused"
                assert path.name in str(error), (place, value, error)
            except Stop:
                pass
            except Exception as error:
                raise AssertionError((place, value)) from error
        skipped = [str(each.message) for each in told if "This backup is skipped" in str(each.message)]
        assert all(path.name in text for text in skipped), (place, value)
        outcomes.append("skipped" if skipped else outcome)
        shutil.rmtree(folder)
    names = [entry["name"] for entry in manifest["content"]["callbacks"]]
    assert names[0] == "EarlyStopping"
    assert names[2:6] == ["CSVLogger", "ModelCheckpoint", "JSONLines", "History"]
    found = zip(NEVER_RESUMED, outcomes)
    assert [case for case, outcome in found if outcome == "resumed"] == []
    assert {"skipped", "refused"} <= set(outcomes) <= {"skipped", "refused", "resumed"}
