"""Paths with a URL scheme: every callback and command supports or rejects them, and never creates a folder named `gs:`."""

from __future__ import annotations

import pathlib
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from upath import UPath

import unisono
from unisono import callbacks
from unisono.callbacks import output_paths
from unisono.distribute.storage import local_path, storage_path, tensorflow_path
from unisono.distribute.workers import records

WRITERS = {
    "AnomalyReport": (callbacks.AnomalyReport, "path", "a.json"),
    "BackupAndRestore": (callbacks.BackupAndRestore, "directory", "b"),
    "JSONLines": (callbacks.JSONLines, "path", "a.jsonl"),
    "ModelCheckpoint": (callbacks.ModelCheckpoint, "filepath", "{epoch}.keras"),
    "Profiler": (callbacks.Profiler, "log_dir", "logs"),
    "TrainingReport": (callbacks.TrainingReport, "path", "a.html"),
    "compare_reports": (callbacks.compare_reports, "paths", "a.jsonl"),
    "list_backups": (callbacks.list_backups, "directory", "b"),
    "read_backup": (callbacks.read_backup, "path", "b/a.unisono"),
    "verify_checkpoint": (callbacks.verify_checkpoint, "path", "a.keras"),
}


@pytest.fixture(autouse=True)
def nothing_is_written_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert [path.name for path in tmp_path.iterdir()] == []


def fit(callback):
    """A fit with this callback; an error must come before its first step."""
    model, steps = unisono.Sequential([keras.Input((1,)), keras.layers.Dense(1)]), []
    model.compile("sgd", "mse", run_eagerly=True)
    count = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: steps.append(batch))
    try:
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[callback, count])
    except ValueError:
        assert not steps
        raise


def every(url, given=None):
    """Each callback and function with a URL as its path: what it raises, and the name of the argument."""
    for make, argument, file in WRITERS.values():
        with pytest.raises(ValueError) as caught:
            make((given or str)(f"{url}/{file}"))
        yield str(caught.value), argument, f"{url}/{file}"


@pytest.mark.parametrize("name", WRITERS)
def test_url_of_a_store_is_accepted_when_the_callback_is_made(name):
    make, argument, file = WRITERS[name]
    for given in (f"memory://bucket/{file}", UPath(f"memory://bucket/{file}")):
        try:
            made = make(given)
        except FileNotFoundError:
            continue
        except OSError as error:
            assert "memory://bucket" in str(error)
            continue
        if argument in ("path", "directory") and hasattr(made, argument):
            assert getattr(made, argument) == UPath(f"memory://bucket/{file}")


def test_scheme_that_fsspec_does_not_know_is_rejected():
    for message, argument, url in every("abfs+x://bucket"):
        assert message.startswith(f"`{argument}` has the scheme abfs+x://, which fsspec does not know: use ")
        assert message.endswith(f"Received: {url!r}")


def test_path_object_that_lost_a_slash_is_rejected():
    for message, argument, _ in every("s3://bucket", pathlib.Path):
        assert message.startswith(f"`{argument}` is a URL that lost a slash")


def test_password_in_a_url_is_rejected_and_not_shown():
    for message, argument, _ in every("sftp://me:my-password@host"):
        assert (
            message.startswith(f"`{argument}` must not contain a password") and "my-password" not in message
        )


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "upath", None)
    for message, argument, url in every("s3://bucket"):
        assert message.startswith(
            f"`{argument}` is a URL, for which `universal-pathlib` and the package of its store"
        )
        assert "pip install universal-pathlib s3fs" in message and message.endswith(f"Received: {url!r}")


def test_package_of_a_store_that_is_missing_is_named():
    with pytest.raises(ValueError, match=r"`path`: the store of .* cannot be opened"):
        storage_path("path", "hdfs://host/a")


def test_each_callback_that_writes_is_among_those_that_were_tried():
    named = {kind.__name__ for kind in output_paths._OUTPUTS}
    assert named <= {*WRITERS, "CSVLogger", "OrbaxCheckpoint", "TensorBoard"}


def test_local_paths_remain_local():
    for text in ("a", "/a/b", "a:b/c", "C:/a", "./gs:/a", "a/b://c"):
        assert local_path("path", text) == pathlib.Path(text)
        assert tensorflow_path("path", text) == text
    for text in ("file:///a/b", "file:/a/b", "FILE:///a/b"):
        assert local_path("path", text) == pathlib.Path("/a/b")
    assert callbacks.ModelCheckpoint("file:///a/{epoch}.keras").filepath == "/a/{epoch}.keras"
    for text in ("file://host/a", "", "a\0b"):
        with pytest.raises(ValueError, match="`path` must be"):
            local_path("path", text)


def test_tensorboard_takes_the_schemes_of_tensorflow(tmp_path):
    with pytest.raises(ValueError, match="`log_dir` has the scheme abc://, which fsspec does not know"):
        callbacks.TensorBoard("abc://logs")
    with pytest.raises(ValueError, match="`log_dir` is a URL that lost a slash"):
        callbacks.TensorBoard(pathlib.Path("ram://logs"))
    fit(callbacks.TensorBoard("ram://logs"))
    assert any("tfevents" in name for name in tf.io.gfile.listdir("ram://logs/train"))


def test_url_of_a_callback_of_keras_is_rejected_before_the_first_step():
    for callback in (
        keras.callbacks.CSVLogger("abc://bucket/log.csv"),
        keras.callbacks.CSVLogger(pathlib.Path("gs://bucket/log.csv")),
        keras.callbacks.ModelCheckpoint("abc://host/m.keras"),
        keras.callbacks.BackupAndRestore("memory://bucket/b"),
        keras.callbacks.TensorBoard("abc://bucket/logs"),
    ):
        with pytest.raises(ValueError, match=f"of `{type(callback).__name__}` "):
            fit(callback)


def test_backup_of_a_log_in_a_bucket_is_rejected(tmp_path):
    logger = keras.callbacks.CSVLogger("ram://log.csv")
    output_paths.check_output_paths([logger], None)
    with pytest.raises(ValueError, match="`filename` of `CSVLogger` must be in a local"):
        output_paths.check_output_paths([logger, callbacks.BackupAndRestore(tmp_path / "b")], None)


def test_url_in_a_variable_is_rejected(monkeypatch):
    with pytest.raises(ValueError, match="`UNISONO_RECORDS` must be in a local"):
        records.start("gs://bucket/records", "worker 0")
