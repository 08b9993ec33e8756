"""A Unisono fit leaves plain Keras in its process unchanged bit for bit: after, and in another thread."""

import json
import os
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.as_for_users  # the bits that users get

PLAIN = """
import keras, numpy as np, tensorflow as tf

@keras.saving.register_keras_serializable("plain")
class Noisy(keras.layers.Layer):
    def build(self, shape):
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.seeds = keras.random.SeedGenerator(7)

    def call(self, x, training=False):
        self.count.assign(self.count + 1.0)
        self.add_loss(keras.ops.sum(x * x))
        noise = keras.random.normal(keras.ops.shape(x), seed=self.seeds)
        return x + 0.1 * noise * keras.random.uniform(keras.ops.shape(x), seed=self.seeds) * self.count

def model(ours=keras):
    # Embedding (`take`), dropout, batch normalization, a variable read after it was assigned, an added loss.
    init = keras.initializers.GlorotUniform(3)
    ids = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(11, 6, embeddings_initializer=init)(ids)
    x = keras.layers.Flatten()(x)
    x = keras.layers.BatchNormalization(synchronized=True)(x)
    x = Noisy()(keras.layers.Dense(8, "tanh", kernel_initializer=init)(x))
    x = keras.layers.Dropout(0.3, seed=5)(x)
    made = ours.Model(ids, keras.layers.Dense(2, kernel_initializer=init, kernel_regularizer="l2")(x))
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    how = {"jit_compile": False}  # XLA compiles what was traced, for a second each time
    made.compile(keras.optimizers.Adam(0.01), loss, metrics=["mae"], weighted_metrics=["mse"], **how)
    return made

def data():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 11, (16, 4))
    return ids, rng.normal(size=(16, 2)).astype("float32"), rng.uniform(size=16).astype("float32")

def bits():
    plain = model()
    ids, y, weight = data()
    history = plain.fit(ids, y, sample_weight=weight, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    found = [value for values in history.values() for value in values]
    found += [*plain.evaluate(ids, y, verbose=0), float(plain.predict(ids, verbose=0).sum())]
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(name="s"), name="l")
    written = keras.optimizers.serialize(scaled)
    read = keras.optimizers.deserialize(keras.optimizers.serialize(scaled))
    found += [float(w.sum()).hex() for w in plain.get_weights()]
    return [repr(value) for value in found] + [repr(written), type(read).__module__]
"""
ALONE = PLAIN + "import json, sys\nprint('BITS' + json.dumps(bits()))\n"
names = {}
exec(PLAIN, names)


@pytest.fixture(scope="module")
def alone():
    """The results of a process without Unisono."""
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    run = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env=env)
    assert "BITS" in run.stdout, run.stderr
    return json.loads(run.stdout.partition("BITS")[2])


class OtherThread(keras.layers.Layer):
    """Trains plain Keras in another thread while this thread computes a Unisono step."""

    found = None

    def call(self, x):
        from unisono.distribute.step_context import current_step

        if current_step() is not None and OtherThread.found is None:
            OtherThread.found = []
            thread = threading.Thread(target=lambda: OtherThread.found.extend(names["bits"]()))
            thread.start()
            thread.join()
        return x


def test_plain_keras_computes_the_same_bits_during_and_after_a_fit_of_ours(alone):
    assert bits_during_a_fit() == [alone, alone], "in another thread, and between the epochs"
    assert names["bits"]() == alone


def bits_during_a_fit():
    """The results of plain Keras in another thread in the middle of a step, and at the end of an epoch."""
    import unisono
    from unisono.compat import register

    OtherThread.found = None
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        inputs = keras.Input((3,))
        x = keras.layers.BatchNormalization(synchronized=True)(keras.layers.Dense(3)(inputs))
        x = keras.layers.Dropout(0.1)(OtherThread()(x))
        ours = unisono.Model(inputs, keras.layers.Dense(1)(x))
        ours.compile(unisono.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    seen = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(names["bits"]()))
    ours.fit(np.ones((6, 3)), np.ones((6, 1)), batch_size=3, verbose=0, callbacks=[watch])
    assert not any(vars(each.owner)[each.name] is each.made[1] for each in register.REPLACED)
    return [OtherThread.found, *seen]
