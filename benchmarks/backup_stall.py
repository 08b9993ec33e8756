"""Measures how much training time backups take: one backup of 50 MB of weights every 10 s, with and without `background`."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np

import unisono
from benchmarks.tables import publish

WIDTH = 2500  # two layers of 2500 x 2500 float32: 50 MB; with Adam's state 150 MB


class StopAfter(keras.callbacks.Callback):
    """Stops training after `seconds`; counts steps and seconds after the first compiled call."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds, self.begin, self.first, self.steps = seconds, None, 0, 0

    def steps_until_call(self, step: int) -> int | None:
        """Allows compiled calls of any length."""
        return None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Reads the clock."""
        now = time.perf_counter()
        done = int(self.model.optimizer.iterations.numpy())
        if self.begin is None:  # compiling is not counted
            self.begin, self.first = now, done
        self.steps, self.took = done - self.first, now - self.begin
        if self.took >= self.seconds:
            self.model.stop_training = True


class Sizes(keras.callbacks.Callback):
    """Measures the size of a complete backup."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder, self.bytes = folder, 0

    def on_train_end(self, logs: dict | None = None) -> None:
        """Reads the size before the backups are deleted."""
        until = time.monotonic() + 60
        while not self.bytes and self.folder.exists() and time.monotonic() < until:
            self.bytes = max(
                (path.stat().st_size for path in self.folder.glob("backup-*.unisono")), default=0
            )
            time.sleep(0.05)


def train(seconds: float, every: float, folder: Path, background: bool | None) -> dict[str, float]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = unisono.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(WIDTH, activation="relu"), keras.layers.Dense(WIDTH)]
    )
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(64 * 50, WIDTH)).astype("float32")
    stop, sizes = StopAfter(seconds), Sizes(folder)
    callbacks = [stop, sizes]
    backup = None
    if background is not None:
        backup = unisono.callbacks.BackupAndRestore(folder, save_freq=float(every), background=background)
        callbacks.append(backup)
    model.fit(x, x, batch_size=64, epochs=10**6, verbose=0, callbacks=callbacks)
    return {
        "per step": stop.took / max(1, stop.steps),
        "stall": 0.0 if backup is None else backup.stall_seconds / stop.took,
        "saves": 0 if backup is None else backup.saves,
        "bytes": sizes.bytes,
    }


LABELS = {
    "in the background": "in the background (the default)",
    "not in the background": "`background=False`",
}


def plain_write(size: int, folder: Path) -> float:
    data = np.zeros(size, np.uint8)
    begin = time.perf_counter()
    with open(folder / "plain", "wb") as stream:
        stream.write(data.data)
        stream.flush()
        os.fsync(stream.fileno())
    return time.perf_counter() - begin


def main() -> None:
    """Trains the same model three times, without backups, with `background=True`, and with `background=False`.

        python -m benchmarks.backup_stall --seconds 60 --every 10

    For each run it prints the seconds per 1,000 steps, their ratio to the run without backups, and the stall: the
    share of training time for which a backup blocked training. As a lower bound, it also times a plain copy of as
    many bytes.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of each training run")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between saves")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = {
            name: train(arguments.seconds, arguments.every, Path(folder, name.replace(" ", "-")), background)
            for name, background in (
                ("no backups", None),
                ("in the background", True),
                ("not in the background", False),
            )
        }
        plain = plain_write(int(results["in the background"]["bytes"]), Path(folder))
    base = results["no backups"]["per step"]
    for name, result in results.items():
        print(
            f"{name:22} {1e3 * result['per step']:8.2f} s / 1000 steps  x {result['per step'] / base:.3f}  "
            f"{result['saves']:3.0f} saves  stall {100 * result['stall']:.2f} % of training time"
        )
    rows = [
        [
            LABELS[name],
            f"{100 * result['stall']:.1f} % of its time",
            f"{100 * (result['per step'] / base - 1):.1f} % longer",
        ]
        for name, result in results.items()
        if name in LABELS
    ]
    rows.append(["a plain write and `fsync` of as many bytes", f"{plain:.2f} s", ""])
    publish("backup_stall", ["saving", "training is blocked for", "the training run takes"], rows)
    size = results["in the background"]["bytes"]
    print(f"one backup: {size / 1e6:.1f} MB; a plain write and fsync of as many bytes: {plain:.2f} s")


if __name__ == "__main__":
    main()
