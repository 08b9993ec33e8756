"""Keys and passwords in variables, arguments and URLs are never written to the files of a run."""

from __future__ import annotations

import json
import sys
import zipfile

import keras
import numpy as np
import pytest

import unisono
from unisono import callbacks
from unisono.commands import main
from unisono.distribute.workers import records
from unisono.distribute.workers.cluster import read_cluster

MARKER = "s3cr3t-of-mine"
NAMES = ["TF_X", "TF_CONFIG_DIR", "TF_CPP_X", "XLA_X", "CUDA_X", "UNISONO_X", "NCCL_X", "OMP_X", "KERAS_X"]
NAMES += ["KERAS_HOME_X", "API_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"]
NAMES += ["TF_HTTP_PASSWORD", "https_proxy"]


def fitted(*written, **arguments):
    """A model after a fit with these callbacks."""
    model = unisono.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **arguments)
    model.fit(np.ones((4, 1)), np.ones((4, 1)), batch_size=2, verbose=0, callbacks=list(written))
    return model


def texts_in(folder):
    """The bytes of every file, including the members of archives."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from ((f"{path.name}/{name}", archive.read(name)) for name in archive.namelist())


def test_no_file_of_a_run_holds_a_secret(tmp_path, monkeypatch, capsys):
    for name in NAMES:
        monkeypatch.setenv(name, f"https://user:{MARKER}@host/{MARKER}")
    url = f"https://user:{MARKER}@host/data"
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", url)  # the report shows this variable
    monkeypatch.setattr(sys, "argv", ["train.py", "--api-key", MARKER, f"--data={url}", url])
    fitted(
        callbacks.TrainingReport(tmp_path / "report.html"),
        callbacks.JSONLines(tmp_path / "lines.jsonl", every=1),
        callbacks.TensorBoard(tmp_path / "logs", update_freq=1, write_graph=True),
        callbacks.ModelCheckpoint(tmp_path / "m.keras"),
        callbacks.BackupAndRestore(tmp_path / "backup", delete_when_done=False),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
    )
    records.write(tmp_path, records.Record("worker 0", 1, 0.0))
    assert main(["report", str(tmp_path), "--output", str(tmp_path / "again.html")]) == 0
    found = dict(texts_in(tmp_path))
    assert {"report.html", "report.jsonl", "again.html", "lines.jsonl", "log.csv"} <= found.keys()
    assert any("tfevents" in name for name in found) and any(name.endswith(".unisono") for name in found)
    assert [name for name, text in found.items() if MARKER.encode() in text] == []
    assert MARKER not in "".join(capsys.readouterr())


def test_errors_about_addresses_hold_no_password(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": [f"user:{MARKER}@host:22"]}}))
    for make in (lambda: callbacks.ModelCheckpoint(f"s3://{MARKER}@host/m.keras"), read_cluster):
        with pytest.raises(ValueError, match=r"Received: .*\*\*\*@host") as caught:
            make()
        assert MARKER not in str(caught.value)


def test_report_shows_the_variables_that_its_list_names(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    fitted(callbacks.TrainingReport(tmp_path / "report.html", gradient_norm=False), run_eagerly=True)
    first = json.loads((tmp_path / "report.jsonl").read_text().splitlines()[0])
    assert first["environment"]["OMP_NUM_THREADS"] == "3" and "command line" not in first["machine"]
