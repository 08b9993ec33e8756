"""Trains with NumPy code everywhere. Tests import it, and run it as a program with NumPy's type promotion on."""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import unisono

tnp = tf.experimental.numpy
ROWS, BATCH = 22, 5


def mirrored(replicas):
    if replicas == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy(
        [f"CPU:{i}" for i in range(replicas)], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def data():
    random = np.random.default_rng(2)
    x = random.normal(size=(ROWS, 4)).astype("float32")
    return x, (x[:, :1] ** 2).astype("float32")


class Squash(keras.layers.Layer):
    """A layer in NumPy code, or the same in TensorFlow operations."""

    def __init__(self, numpy, **kwargs):
        super().__init__(**kwargs)
        self.numpy = numpy

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, x):
        scale = tf.convert_to_tensor(self.scale)
        if self.numpy:
            return tnp.tanh(x * scale) + tnp.where(x > 0, tnp.square(x), tnp.zeros_like(x))
        return tf.tanh(x * scale) + tf.where(x > 0, tf.square(x), tf.zeros_like(x))


def loss_of(numpy):
    """Not known to be per-sample, so it receives the samples of all replicas."""

    def loss(y_true, y_pred):
        if numpy:
            return tnp.mean(tnp.log1p(tnp.square(y_true - y_pred)), axis=-1)
        return tf.reduce_mean(tf.math.log1p(tf.square(y_true - y_pred)), axis=-1)

    return unisono.rowwise(loss)


def metric_of(numpy):
    def worst(y_true, y_pred):
        return tnp.max(tnp.abs(y_true - y_pred)) if numpy else tf.reduce_max(tf.abs(y_true - y_pred))

    return worst


def transformer_of(numpy):
    def sign_root(gradients):
        if numpy:
            return [(tnp.sign(g) * tnp.sqrt(tnp.abs(g) + 1e-3), v) for g, v in gradients]
        return [(tf.sign(g) * tf.sqrt(tf.abs(g) + 1e-3), v) for g, v in gradients]

    return sign_root


def pipeline(numpy, x, y):
    def scaled(x, y):
        return (tnp.multiply(x, tnp.float32(0.5)), y) if numpy else (x * 0.5, y)

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).map(scaled)


def train(strategy, numpy, jit_compile=False, arrays=False):
    """Losses, metrics and weights of two epochs, then evaluation and predictions."""
    keras.utils.set_random_seed(5)
    x, y = data()
    with strategy.scope():
        model = unisono.Sequential([keras.Input((4,)), Squash(numpy), keras.layers.Dense(1)])
        model.compile(
            unisono.optimizers.SGD(0.05, gradient_transformers=[transformer_of(numpy)]),
            loss=loss_of(numpy),
            metrics=[metric_of(numpy), "mae"],
            jit_compile=jit_compile,
        )
    if arrays:
        x, y = (tnp.asarray(x * np.float32(0.5)), tnp.asarray(y)) if numpy else (x * np.float32(0.5), y)
        given = {"x": x, "y": y, "batch_size": BATCH}
    else:
        given = {"x": pipeline(numpy, x, y)}
    history = model.fit(**given, epochs=2, shuffle=False, verbose=0).history
    evaluated = model.evaluate(**given, verbose=0)
    predicted = model.predict(given["x"], verbose=0)
    weights = [w.ravel().tolist() for w in model.get_weights()]
    return [*history.values(), evaluated, *weights, np.asarray(predicted).ravel().tolist()]


def custom_loop(strategy, numpy):
    """Three steps of a custom loop with `GradientTape` through NumPy code."""
    x, y = data()
    with strategy.scope():
        variable = tf.Variable(tf.ones([4, 1]))
        optimizer = unisono.optimizers.SGD(0.1)
    count = strategy.num_replicas_in_sync

    def step(replica_rows):
        rows_x, rows_y = replica_rows
        with tf.GradientTape() as tape:
            answer = tnp.dot(rows_x, variable) if numpy else tf.matmul(rows_x, variable)
            error = tnp.square(answer - rows_y) if numpy else tf.square(answer - rows_y)
            loss = (tnp.sum(error) if numpy else tf.reduce_sum(error)) / ROWS
        optimizer.minimize(loss, [variable], tape=tape)
        return loss

    @tf.function
    def all_replicas(parts):
        return strategy.reduce("SUM", strategy.run(step, args=(parts,)), axis=None)

    def part(context):
        rows = slice(
            context.replica_id_in_sync_group * ROWS // count,
            (context.replica_id_in_sync_group + 1) * ROWS // count,
        )
        return tf.constant(x[rows]), tf.constant(y[rows])

    parts = strategy.experimental_distribute_values_from_function(part)
    losses = [float(all_replicas(parts)) for _ in range(3)]
    return [losses, variable.numpy().ravel().tolist()]


def main(prefer_float32):
    """Prints the results with NumPy's behaviour on, as JSON."""
    tf.experimental.numpy.experimental_enable_numpy_behavior(prefer_float32=prefer_float32)
    unisono.distribute.simulate_devices(2)
    results = {
        "fit, one replica": train(mirrored(1), numpy=True, arrays=True),
        "fit, two replicas": train(mirrored(2), numpy=True),
        "loop": custom_loop(mirrored(2), numpy=True),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main(prefer_float32=sys.argv[1] == "float32")
