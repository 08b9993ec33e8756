"""A bucket of an S3 server on loopback: kills, two workers without a shared folder, errors before the first step."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
pytestmark = [pytest.mark.long, pytest.mark.clusters, pytest.mark.process]

PROGRAM = """
import os, signal, sys
import keras, numpy as np, unisono
url, out, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
strategy = unisono.distribute.auto_strategy()
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(64, 4))
with strategy.scope():
    model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile("adam", "mse", steps_per_execution=1)

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

def callbacks():
    return [
        unisono.callbacks.JSONLines(f"{url}/log.jsonl", clock=lambda: 0.0),
        unisono.callbacks.ModelCheckpoint(f"{url}/models/{{epoch}}.keras", keep_last=1),
        unisono.callbacks.BackupAndRestore(f"{url}/backup", save_freq=3),
        Kill(),
    ]

model.fit(x, x[:, :1], batch_size=8, epochs=3, verbose=0, callbacks=callbacks())
if unisono.distribute.is_chief():
    np.savez(out, *model.get_weights())
"""


@pytest.fixture(scope="module")
def environment():
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    set_here = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "an-access-key",
        "AWS_SECRET_ACCESS_KEY": "a-secret-key",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    os.environ.update(set_here)
    import s3fs

    s3fs.S3FileSystem().mkdir("bucket")
    yield {**os.environ}
    server.stop()
    for name in set_here:
        del os.environ[name]


def run(tmp_path, environment, url, kill_at=0, workers=1, restarts=0):
    program, out = tmp_path / "train.py", tmp_path / f"{url.rpartition('/')[2]}.npz"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), url, str(out), str(kill_at)]
    if workers > 1:
        launch = ["-m", "unisono", "launch", "--workers", str(workers), "--restarts", str(restarts)]
        command = [sys.executable, *launch, *command[1:]]
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=200
    )
    return ended, (np.load(out) if out.exists() else None)


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in a.files)


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_run_ends_with_the_same_bits(tmp_path, environment, workers):
    ended, reference = run(tmp_path, environment, f"s3://bucket/whole{workers}", workers=workers)
    assert reference is not None, ended.stderr
    url = f"s3://bucket/killed{workers}"
    ended, none = run(tmp_path, environment, url, kill_at=13, workers=workers)
    assert ended.returncode != 0 and none is None
    begin = time.monotonic()
    ended, resumed = run(tmp_path, environment, url, workers=workers)
    assert resumed is not None, ended.stderr
    assert f"Resuming from {url}/backup/backup-" in ended.stdout + ended.stderr
    assert same(resumed, reference)
    print(f"{workers} workers: killed and resumed in {time.monotonic() - begin:.1f} s")
    import s3fs

    store = s3fs.S3FileSystem(use_listings_cache=False)
    names = sorted(name.removeprefix(url.removeprefix("s3://")) for name in store.find(url))
    assert names == ["/log.jsonl", "/models/3.keras"]
    whole = f"s3://bucket/whole{workers}/log.jsonl"
    assert store.cat_file(f"{url}/log.jsonl") == store.cat_file(whole)


def test_errors_come_before_the_first_step_and_hold_no_credential(tmp_path, environment):
    for changed, url, reason in (
        ({}, "s3://no-such-bucket/run", "bucket does not exist"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://bucket/run", "Could not connect"),
    ):
        ended, none = run(tmp_path, {**environment, **changed}, url)
        assert none is None and "SaveError" in ended.stderr and reason in ended.stderr
        assert "a-secret-key" not in ended.stdout + ended.stderr
