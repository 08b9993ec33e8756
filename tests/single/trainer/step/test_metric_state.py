"""The state of a metric begins, and is reset, with the numbers that it has on one device, of every dtype."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

X = np.random.default_rng(1).normal(size=(7, 4)).astype("float32")


class States(keras.Metric):
    """Begins with numbers that are not 0, and sets some of them again."""

    def __init__(self, name="states", **options):
        super().__init__(name=name, **options)
        start = keras.initializers.Constant
        self.kept = self.add_variable((), start(5.5), name="kept")
        self.count = self.add_variable((2,), start(3), dtype="int32", name="count")
        self.wraps = self.add_variable((), "zeros", dtype="uint8", name="wraps")
        self.any = self.add_variable((), "zeros", dtype="bool", name="any")
        self.all = self.add_variable((3,), "ones", dtype="bool", name="all")

    def update_state(self, values, sample_weight=None):
        self.kept.assign(0.5 * self.kept + tf.reduce_sum(values))
        self.count.assign_add(tf.stack([tf.size(values), tf.shape(values)[0]]))
        self.wraps.assign_add(tf.cast(tf.size(values), "uint8"))
        self.any.assign(self.any | tf.reduce_any(values > 1))
        self.all.assign(self.all & tf.reduce_all(values < 0.5, axis=0))

    def result(self):
        flags = tf.concat([self.any[None], self.all], 0)
        counts = tf.cast(self.wraps, tf.float32) + tf.cast(tf.reduce_sum(self.count), tf.float32)
        return self.kept + counts + tf.reduce_sum(tf.cast(flags, tf.float32) * [1e3, 2e3, 4e3, 8e3])

    def reset_state(self):
        self.count.assign([7, 8])
        self.wraps.assign(250)
        self.any.assign(False)
        self.all.assign([True, False, True])


def measuring(base):
    class Measures(base):
        def __init__(self):
            super().__init__()
            self.out, self.states = keras.layers.Dense(3), States()

        def train_step(self, data):
            self.states.update_state(self.out(keras.utils.unpack_x_y_sample_weight(data)[0]))
            return {"states": self.states.result()}

    return Measures


@pytest.mark.short("mirrored3-False")
@pytest.mark.parametrize("name, eager", [("mirrored3", False), ("mirrored2", True)])
def test_state_that_does_not_begin_with_zero_is_that_of_one_device(name, eager):
    results = []
    for base, strategy in ((keras.Model, None), (unisono.Model, helpers.strategy(name))):
        keras.utils.set_random_seed(1)
        with helpers.scope(strategy):
            model = measuring(base)()
            model.compile("sgd", jit_compile=False, run_eagerly=eager or not strategy)
        logs = [model.train_on_batch(X[:n], return_dict=True) for n in (5, 1)]
        logs += [model.fit(X, batch_size=5, epochs=2, shuffle=False, verbose=0).history]
        results.append((logs, [np.array(v) for v in model.states.variables]))
    helpers.assert_close(results[1], results[0], helpers.FLOAT32)
