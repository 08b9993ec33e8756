"""Worker 1 has three batches, the others four. In a compiled call each waits, so no host sees that data ended."""

import sys

import keras
import numpy as np
import tensorflow as tf

import unisono

strategy = unisono.distribute.auto_strategy()
me = unisono.distribute.worker_index()
with strategy.scope():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False, steps_per_execution=2, run_eagerly="eager" in sys.argv)
x = np.arange(32.0, dtype="float32").reshape(16, 2) / 32
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4).enumerate()
data = data.filter(lambda number, _: number < (3 if me == 1 else 4)).map(lambda _, batch: batch)
given = {"steps_per_epoch": 4} if "given" in sys.argv else {}
if "predict" in sys.argv:
    model.predict(data.map(lambda x, y: x), verbose=0)
model.fit(data.repeat() if given and me != 1 else data, epochs=2, verbose=0, **given)
