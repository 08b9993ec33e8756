"""Two workers, one of them slow, with a report and TensorBoard; then non-finite data."""

import itertools
import pathlib
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf

import unisono

out = pathlib.Path(sys.argv[1])
strategy = unisono.distribute.auto_strategy()
me = unisono.distribute.worker_index()


# The clock in the step: worker 0 waits 1000 s for all-reduces, worker 1, whose gradients come last, not at all.
moments = itertools.cycle([0.0, 1000.0 * (1 - me)])
tf.timestamp = lambda: tf.constant(next(moments), tf.float64)

x = np.random.default_rng(0).random((100, 8)).astype("float32")
y = x[:, :1].copy()
with strategy.scope():
    model = unisono.Sequential([keras.Input((8,)), keras.layers.Dense(1, name="last")])
    model.compile(unisono.optimizers.SGD(1e-3), "mse")
callbacks = [
    unisono.callbacks.TrainingReport(out / "report.html"),
    unisono.callbacks.TensorBoard(out / "tensorboard", update_freq=5),
    unisono.callbacks.JSONLines(out / "log.jsonl"),
]
model.fit(x, y, batch_size=7, epochs=2, callbacks=callbacks)

x[50, 2] = np.nan
anomaly = unisono.callbacks.AnomalyReport()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    model.fit(x, y, batch_size=7, epochs=2, verbose=0, shuffle=False, callbacks=[anomaly])
print("anomaly", anomaly.report["step"], anomaly.report["gradients"], anomaly.report["batch"][0]["nan"])
