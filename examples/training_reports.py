"""Reports: two training runs on two replicas with a report each, and one page that compares them.

Run it with `python examples/training_reports.py [FOLDER]`, then open FOLDER/report.html in a browser.
"""

from __future__ import annotations

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import sklearn.datasets
import tensorflow as tf

import unisono


def make_model(learning_rate: float) -> unisono.Sequential:
    model = unisono.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ],
        name="digits",
    )
    model.compile(
        unisono.optimizers.SGD(learning_rate, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main(folder: str = "demo/reports") -> None:
    out = pathlib.Path(folder)
    unisono.distribute.simulate_devices(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    x, y = (x / 16).astype("float32"), y.astype("int32")
    for name, learning_rate in (("slow", 0.01), ("fast", 0.1)):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = make_model(learning_rate)
        model.fit(
            x,
            y,
            batch_size=50,
            epochs=8,
            validation_split=0.2,
            callbacks=[
                unisono.callbacks.TrainingReport(out / name / "report.html", title=f"Digits, {name}"),
                unisono.callbacks.JSONLines(out / name / "log.jsonl"),
                keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1),
            ],
        )
    page = unisono.callbacks.compare_reports(out)
    print(f"{page}: 2 training runs")


if __name__ == "__main__":
    main(*sys.argv[1:])
