"""A search for hyperparameters: a plain loop, trials that look hopeless end early, and one page that compares them all.

Each trial draws its settings from a seed, writes a report, and keeps a backup. A search that was killed goes on where it
was: trials that are done are read from their numbers, the one that was running continues in the middle of its epoch.
The guide "Log to W&B and MLflow, and use other tools" shows KerasTuner and Optuna instead.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets

import unisono


def draw_settings(trial: int) -> dict[str, float | int]:
    """The settings of a trial: the same whenever it is asked for."""
    random = np.random.default_rng((1, trial))
    return {
        "learning_rate": float(10 ** random.uniform(-4, -0.5)),
        "units": int(random.choice([16, 32, 64, 128])),
        "dropout": float(random.uniform(0.0, 0.5)),
    }


class StopHopeless(keras.callbacks.Callback):
    """Ends a trial whose validation loss is above the median of the trials before it, at the same epoch."""

    def __init__(self, others: list[list[float]]) -> None:
        super().__init__()
        self.others = others

    def on_epoch_end(self, epoch, logs=None):
        seen = [losses[epoch] for losses in self.others if len(losses) > epoch]
        self.model.stop_training = len(seen) >= 2 and logs["val_loss"] > statistics.median(seen)


def train(
    settings: dict[str, float | int], folder: pathlib.Path, others: list[list[float]], epochs: int
) -> list[float]:
    """Trains one model; its validation loss after each epoch."""
    keras.utils.set_random_seed(1)
    model = unisono.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(settings["units"], activation="relu"),
            keras.layers.Dropout(settings["dropout"]),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        unisono.optimizers.Adam(settings["learning_rate"]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    callbacks = [
        StopHopeless(others),
        unisono.callbacks.TrainingReport(folder / "report.html"),
        unisono.callbacks.BackupAndRestore(folder / "backup"),
    ]
    history = model.fit(
        x / 16, y, batch_size=64, epochs=epochs, validation_split=0.25, callbacks=callbacks, verbose=0
    )
    return history.history["val_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("demo/search"))
    options = parser.parse_args()
    done: list[list[float]] = []
    for trial in range(options.trials):
        settings, folder = draw_settings(trial), options.folder / f"trial-{trial}"
        folder.mkdir(parents=True, exist_ok=True)
        result = folder / "val_loss.json"
        if not result.exists():
            losses = train(settings, folder, done, options.epochs)
            result.write_text(json.dumps(losses))
        done.append(json.loads(result.read_text()))
        said = ", ".join(f"{name} {value:.3g}" for name, value in settings.items())
        ended = "" if len(done[-1]) == options.epochs else f", ended after epoch {len(done[-1])}"
        print(f"trial {trial}: {said}: loss {min(done[-1]):.3f}{ended}")
    best = min(range(len(done)), key=lambda trial: min(done[trial]))
    print(f"the best is trial {best}")
    page = unisono.callbacks.compare_reports(options.folder)
    print(f"{page}: {options.trials} training runs")


if __name__ == "__main__":
    main()
