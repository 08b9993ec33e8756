"""Two workers, one of which is killed in the middle: both are started again and end bitwise as an undisturbed run.

    python -m unisono launch --workers 2 --restarts 1 two_workers.py
    python -m unisono launch --workers 2 --restarts 1 two_workers.py --kill-at 25

Both print the same fingerprint of the weights. Run alone, `python two_workers.py`, the program trains on one device, with
different rounding. On a cluster start it on every machine, with Slurm or with `TF_CONFIG`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import signal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import sklearn.datasets

import unisono


class KilledOnce(keras.callbacks.Callback):
    """Kills worker 1 at a step, as a machine that is lost, but not again after the restart."""

    def __init__(self, step: int, mark: pathlib.Path) -> None:
        super().__init__()
        self.left, self.mark = step, mark

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0 and not unisono.distribute.is_chief() and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo/two_workers"))
    parser.add_argument("--kill-at", type=int, metavar="STEP", help="kill worker 1 after so many steps")
    options = parser.parse_args()

    strategy = unisono.distribute.auto_strategy()  # of both workers under the launcher, of this device alone
    keras.utils.set_random_seed(1)
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    with strategy.scope():
        model = unisono.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(64, activation="relu"),
                keras.layers.Dropout(0.2),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            unisono.optimizers.Adam(2e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    folder = options.folder / ("killed" if options.kill_at else "undisturbed")
    callbacks = [unisono.callbacks.BackupAndRestore(folder / "backup", save_freq=10)]
    if options.kill_at:
        callbacks.append(KilledOnce(options.kill_at, folder / "was-killed"))
    # The last of the 18 batches has 62 samples.
    model.fit(x, y, batch_size=103, epochs=2, verbose=2, callbacks=callbacks)

    fingerprint = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
    if unisono.distribute.is_chief():
        replicas = strategy.num_replicas_in_sync
        print(
            f"weights after {model.optimizer.iterations.numpy()} steps on {replicas} replicas: {fingerprint[:16]}"
        )


if __name__ == "__main__":
    main()
