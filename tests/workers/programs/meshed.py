"""A worker, or a process alone, that trains on a mesh: writes what it has computed to `<folder>/<its number>.npz`.

Arguments: a folder, then in any order the names of the axes ("batch model" or "model batch"), "initialize" to let Keras join
the cluster, "backup" to resume, "dies" to kill the last worker, "stops" to stop it.
"""

import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import unisono

folder, axes, shape, *rest = sys.argv[1:]
keras.config.set_floatx("float64")
keras.utils.set_random_seed(1)
R = np.random.default_rng(0)
X, TOKENS = R.normal(size=(11, 4)), R.integers(0, 8, (11, 4)).astype("int32")
LAYOUTS = {
    "table/embeddings": ("model", None), "attention/query/kernel": (None, "model", None),
    "attention/attention_output/kernel": ("model", None, None), "up/kernel": (None, "model"), "up/bias": ("model",),
    "norm/gamma": ("model",),
}  # fmt: skip


def build():
    layers = keras.layers
    tokens, x = keras.Input((4,), dtype="int32"), keras.Input((4,))
    h = layers.Embedding(8, 4, name="table")(tokens)
    h = layers.Add()([h, layers.MultiHeadAttention(4, 2, name="attention")(h, h)])
    h = layers.Concatenate()([layers.GlobalAveragePooling1D()(h), x])
    h = layers.BatchNormalization(name="norm", synchronized=True)(h)
    model = unisono.Model([tokens, x], layers.Dense(2)(layers.Dense(8, "tanh", name="up")(h)))
    model.compile(
        unisono.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5),
        "mse",
        metrics=["mae"],
        jit_compile=False,
    )
    return model


class Dies(keras.callbacks.Callback):
    """Kills the last worker in the second epoch, or stops it."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and unisono.distribute.worker_index() == 1:
            os.kill(os.getpid(), signal.SIGSTOP if "stops" in rest else signal.SIGKILL)


if axes == "none":
    model = build()
else:
    if "initialize" in rest:
        keras.distribution.initialize()
    mesh = keras.distribution.DeviceMesh(tuple(map(int, shape.split("x"))), axes.split(","))
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in LAYOUTS.items():
        layouts[path] = axes
    distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    strategy = unisono.distribute.strategy_of(distribution)
    with strategy.scope():
        model = build()
callbacks = [Dies()] if {"dies", "stops"} & {*rest} else []
if "backup" in rest:
    path = str(pathlib.Path(folder).parent / "backup")
    callbacks.append(unisono.callbacks.BackupAndRestore(path, delete_checkpoint=False))
history = model.fit([TOKENS, X], X[:, :2], batch_size=4, epochs=3, verbose=0, callbacks=callbacks).history
results = model.evaluate([TOKENS, X], X[:, :2], batch_size=5, verbose=0)
outputs = model.predict([TOKENS, X], batch_size=5, verbose=0)
found = {f"history {name}": value for name, value in history.items()} | {
    "results": results,
    "outputs": outputs,
}
found |= {f"weight {n}": value for n, value in enumerate(model.get_weights())}
found |= {f"state {n}": v.numpy() for n, v in enumerate(model.optimizer.variables)}
parts = [tuple(part.shape) for v in model.variables for part in getattr(v.value, "shards", ())]


@unisono.replica_step
def step(tokens, x):
    with tf.GradientTape() as tape:
        out = model([tokens, x])
        loss = tf.reduce_mean(out**2) + tf.reduce_sum(tf.reduce_mean(out, 0) ** 2)
    model.optimizer.minimize(loss, model.trainable_variables, tape=tape)
    return loss


strategy = model.distribute_strategy
count = strategy.num_replicas_in_sync


def samples(array):
    bounds = [len(array) * n // count for n in range(count + 1)]
    if count == 1:
        return tf.constant(array)
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(
            array[bounds[context.replica_id_in_sync_group] : bounds[context.replica_id_in_sync_group + 1]]
        )
    )


@tf.function
def run(tokens, x):
    return strategy.reduce("SUM", strategy.run(step, args=(tokens, x)), axis=None)


found["own loop"] = run(samples(TOKENS), samples(X)).numpy()
found |= {f"weight {n} of own loop": value for n, value in enumerate(model.get_weights())}
print("parts", parts, flush=True)
np.savez(pathlib.Path(folder) / f"{unisono.distribute.worker_index()}.npz", **found)
