"""ModelCheckpoint: which files stay, what is counted, what survives a crash and a restart."""

import dataclasses
import datetime
import os
import shutil
import types
import zipfile

import keras
import pytest
import tensorflow as tf
from helpers import assert_equal

from unisono.callbacks import ModelCheckpoint, verify_checkpoint
from unisono.callbacks.process_identity import this_process
from unisono.callbacks.saving.checkpoint_files import Saved, checkpoint_checksum


class Saver:
    """Stands in for a model: saving writes its value."""

    metrics = ()
    fit_state = None
    distribute_strategy = tf.distribute.get_strategy()
    value = "new"

    def save(self, path, overwrite=True):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo("value"), self.value)

    save_weights = save


def checkpoint(filepath, **arguments):
    callback = ModelCheckpoint(filepath, **{"monitor": "loss", **arguments})
    callback.set_model(Saver())
    callback.on_train_begin()
    return callback


def epochs(callback, losses, first=0):
    for epoch, loss in enumerate(losses, first):
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, {"loss": loss})


def saved(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith((".keras", ".h5")))


LOSSES = [5.0, 3.0, 4.0, 1.0, 2.0, 6.0]


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"keep_last": 2}, [5, 6]),
        ({"keep_best": 2}, [4, 5]),
        ({"keep_best": 1, "keep_last": 2}, [4, 5, 6]),
        ({"keep_best": 2, "mode": "max"}, [1, 6]),
        ({"save_best_only": True}, [1, 2, 4]),
        ({"save_best_only": True, "keep_last": 2}, [2, 4]),
        ({"save_best_only": True, "initial_value_threshold": 2.5}, [4]),
    ],
)
def test_the_best_and_the_last_stay(tmp_path, arguments, kept):
    epochs(checkpoint(tmp_path / "{epoch}.keras", **arguments), LOSSES)
    assert saved(tmp_path) == [f"{epoch}.keras" for epoch in kept]
    assert sorted(os.listdir(tmp_path)) == saved(tmp_path)
    assert all(verify_checkpoint(tmp_path / name) for name in saved(tmp_path))


def test_what_is_not_among_the_best_is_not_written(tmp_path):
    callback = checkpoint(tmp_path / "{epoch}-{loss:.1f}.keras", keep_best=1)
    written = []
    callback.model.save = lambda path, overwrite=True: written.append(path) or Saver().save(path)
    epochs(callback, LOSSES)
    assert len(written) == 3 and saved(tmp_path) == ["4-1.0.keras"]


def test_nan_is_never_the_best(tmp_path):
    callback = checkpoint(tmp_path / "{epoch}.keras", save_best_only=True)
    epochs(callback, [float("nan"), 2.0, float("nan"), 1.0])
    assert saved(tmp_path) == ["1.keras", "2.keras", "4.keras"]
    epochs(checkpoint(tmp_path / "b{epoch}.keras", keep_best=1), [2.0, float("nan")])
    assert "b1.keras" in saved(tmp_path)


def test_restart_remembers_the_best_and_the_files(tmp_path):
    for number, arguments in enumerate(({"save_best_only": True}, {"keep_best": 2}, {"keep_last": 2})):
        alone, killed = tmp_path / f"alone{number}", tmp_path / f"killed{number}"
        epochs(checkpoint(alone / "{epoch}.keras", **arguments), LOSSES)
        first = checkpoint(killed / "{epoch}.keras", **arguments)
        epochs(first, LOSSES[:3])
        state = first.get_state()
        epochs(first, LOSSES[3:4], 3)  # steps after the backup are repeated
        second = checkpoint(killed / "{epoch}.keras", **arguments)
        second.set_state(state)
        epochs(second, LOSSES[3:], 3)
        assert saved(killed) == saved(alone)


def test_copied_training_removes_only_its_own_files(tmp_path):
    """As after `cp -r first second`: whatever the backup lists, the files of the first run stay."""
    first = checkpoint(tmp_path / "first" / "{epoch}.keras", keep_last=1)
    epochs(first, LOSSES[:2])
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    second = checkpoint(tmp_path / "second" / "{epoch}.keras", keep_last=1)
    second.set_state(first.get_state())
    epochs(second, LOSSES[2:4], 2)
    assert saved(tmp_path / "first") == ["2.keras"] and saved(tmp_path / "second") == ["4.keras"]


def test_forged_state_removes_no_file_of_others(tmp_path):
    """Files that the callback did not write: in other folders, behind links, with other names, or replaced since."""
    folder, other = tmp_path / "own", tmp_path / "other"
    epochs(checkpoint(folder / "{epoch}.keras"), LOSSES[:2])
    epochs(checkpoint(other / "{epoch}.keras"), LOSSES[:2])
    (folder / "3.keras").symlink_to(other / "1.keras")
    (folder / "deep").symlink_to(other)
    digest = checkpoint_checksum(other / "1.keras")
    victims = ["../other/1.keras", "3.keras", "deep/1.keras", "..", "", "5.keras", f"{other}/1.keras"]
    wrong_types = [None, 7, ["1.keras"], ["1.keras", "x", digest], [1, 2.0, digest], ["2.keras", 2.0, None]]
    someone_else = ["2.keras", 2.0, "0" * 128]
    before = {path: path.lstat().st_size for path in tmp_path.rglob("*")}
    for pattern in ("{epoch}.keras", "{epoch}/{batch}.keras", "deep/{epoch}.keras"):
        callback = checkpoint(folder / pattern, keep_last=1)
        for state in ("text", {"a": 1}, [*wrong_types, someone_else, *([v, 0.0, digest] for v in victims)]):
            callback.set_state({"best": 0.0, "batches_since_save": 0, "last_batch": 0, "saved": state})
            callback._remove(callback._take_unwanted())
            callback._saved.append(Saved("9.keras", 0.0, None))
            callback._remove(callback._take_unwanted())
        assert {path: path.lstat().st_size for path in before} == before


@pytest.mark.parametrize("execution", [1, 2, 3, 5, 8])
def test_steps_are_counted_exactly(tmp_path, execution):
    """Compiled calls end where the callback requires it; epochs have 8, 8 and 5 steps: a save at every sixth step."""
    callback = checkpoint(tmp_path / "{epoch}-{batch}.keras", save_freq=6)
    for epoch, steps in enumerate([8, 8, 5]):
        callback.on_epoch_begin(epoch)
        step = 0
        while step < steps:
            step += min(execution, steps - step, callback.steps_until_call(step))
            callback.on_train_batch_end(step - 1, {"loss": 1.0})
        callback.on_epoch_end(epoch, {"loss": 1.0})
    assert saved(tmp_path) == ["1-6.keras", "2-4.keras", "3-2.keras"]


def test_fixed_compiled_calls_do_not_drift(tmp_path):
    callback = checkpoint(tmp_path / "{epoch}-{batch}.keras", save_freq=4)
    callback.on_epoch_begin(0)
    for last in (2, 5, 8, 11):  # three steps each: due after 4, 8 and 12
        callback.on_train_batch_end(last, {"loss": 1.0})
    assert saved(tmp_path) == ["1-12.keras", "1-6.keras", "1-9.keras"]


def test_seconds_are_counted_from_the_last_save_also_by_a_run_that_was_killed(tmp_path):
    def begun(now):
        callback = checkpoint(tmp_path / "{epoch}-{batch}.keras", save_freq=datetime.timedelta(minutes=1))
        callback._clock = lambda: clock[0]
        clock[0] = now
        callback.on_train_begin()
        callback.on_epoch_begin(0)
        return callback

    def step(callback, batch, now):
        clock[0] = now
        callback.on_train_batch_end(batch, {"loss": 1.0})

    clock = [0.0]
    callback = begun(100.0)
    # due at 160, then a minute after the save at 161
    for batch, now in enumerate([130.0, 159.0, 161.0, 219.0]):
        step(callback, batch, now)
    callback.on_epoch_end(0, {"loss": 1.0})
    assert saved(tmp_path) == ["1-3.keras"] and callback.steps_until_call(0) is None
    state = callback.get_state()  # 58 s of the minute have passed
    resumed = begun(1000.0)
    resumed.set_state(state)
    step(resumed, 4, 1001.0)
    assert saved(tmp_path) == ["1-3.keras"]
    step(resumed, 5, 1002.5)
    assert saved(tmp_path) == ["1-3.keras", "1-6.keras"]


def test_leftovers_of_a_killed_save_are_removed(tmp_path):
    left = tmp_path / f".m.{dataclasses.replace(this_process(), pid=2**22 + 5)}.tmp.keras"
    left.touch()
    checkpoint(tmp_path / "m.keras")
    assert not left.exists()


def test_only_the_chief_writes_and_all_decide_the_same(tmp_path):
    callback = checkpoint(tmp_path / "{epoch}.keras", keep_best=1)
    callback.model.fit_state = types.SimpleNamespace(chief=False)
    epochs(callback, LOSSES)
    assert os.listdir(tmp_path) == []
    assert [entry.value for entry in callback._saved] == [1.0]


def test_directory_in_the_way_and_unknown_placeholder_are_errors(tmp_path):
    (tmp_path / "m.keras").mkdir()
    with pytest.raises(OSError, match="non-directory filepath"):
        epochs(checkpoint(tmp_path / "m.keras"), [1.0])
    with pytest.raises(KeyError, match="Failed to format"):
        epochs(checkpoint(tmp_path / "{nothing}.keras"), [1.0])


def test_missing_monitor_is_warned_about(tmp_path):
    with pytest.warns(UserWarning, match="needs the log nothing"):
        epochs(checkpoint(tmp_path / "{epoch}.keras", monitor="nothing", mode="min", keep_best=1), [1.0])
    assert saved(tmp_path) == ["1.keras"]


@pytest.mark.parametrize("weights_only", [True, False])
def test_files_open_in_keras(tmp_path, weights_only):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    name = "{epoch:02d}-{loss:.2f}" + (".weights.h5" if weights_only else ".keras")
    callback = ModelCheckpoint(tmp_path / name, save_weights_only=weights_only)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    callback.on_epoch_end(0, {"loss": 0.126})
    path = tmp_path / name.format(epoch=1, loss=0.126)
    assert path.name.startswith("01-0.13") and verify_checkpoint(path)
    if weights_only:
        loaded = keras.models.clone_model(model)
        loaded.compile("adam", "mse")
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(path, skip_mismatch=False)
    else:
        loaded = keras.saving.load_model(path)
    assert_equal(model.get_weights(), loaded.get_weights())
