"""Numbers that the first samples of a fit do not show for what they are: three uneven replicas, compared with one device.

Tolerance: float64 sums in another order.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from tests.helpers import mirrored

pytestmark = pytest.mark.usefixtures("float64")
L = keras.layers
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, 5)), RNG.normal(size=(24, 2))
PADDED = X.copy()
PADDED[8:, 4] *= RNG.integers(0, 2, 16)  # the first batch has no padding
FEW = X.copy()
FEW[:8, 4] *= np.arange(8) == 6  # the first batch has one valid row


class Net(unisono.Model):
    def __init__(self, between=L.Identity):
        super().__init__()
        self.first, self.between, self.last = L.Dense(6, activation="tanh"), between(), L.Dense(2)

    def call(self, x):
        return self.last(self.between(self.first(x)))


class Own(Net):
    """Steps of its own."""

    def __init__(self):
        super().__init__()
        self.mine = keras.metrics.Mean(name="mine")

    def loss_of(self, x, y):
        return tf.reduce_mean(tf.square(self(x) - y))

    def apply(self, gradients):
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        self.apply(tape.gradient(loss, self.trainable_variables))
        self.mine.update_state(loss)
        return {"mine": self.mine.result()}

    def test_step(self, data):
        self.mine.update_state(self.loss_of(*data))
        return {"mine": self.mine.result()}


class Flooded(Own):
    """Near its floor the loss of some replicas is above it, and of others below."""

    def loss_of(self, x, y):
        return tf.abs(super().loss_of(x, y) - 0.9) + 0.9


class FloodedLoss(Net):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.abs(tf.reduce_mean(tf.square(y_pred - y)) - 0.9) + 0.9


class Floor(L.Layer):
    def call(self, x):
        self.add_loss(tf.maximum(tf.reduce_mean(tf.square(x)), 0.2))
        return x


class Masked(Own):
    def loss_of(self, x, y):
        valid = tf.cast(x[:, 4] != 0, x.dtype)
        errors = tf.reduce_sum(tf.square(self(x) - y), 1)
        return tf.math.divide_no_nan(tf.reduce_sum(errors * valid), tf.reduce_sum(valid))


class Chosen(Own):
    def loss_of(self, x, y):
        return tf.reduce_mean(tf.boolean_mask(tf.reduce_sum(tf.square(self(x) - y), 1), x[:, 4] != 0))


class MaskedLoss(Net):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        valid = tf.cast(x[:, 4] != 0, x.dtype)
        return tf.reduce_sum(tf.reduce_sum(tf.square(y_pred - y), 1) * valid) / tf.reduce_sum(valid)


class Projecting(Own):
    """Two tasks whose gradients agree at first, and conflict later."""

    def train_step(self, data):
        x, y = data
        variables = self.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            z = self(x)
            one, two = (
                tf.reduce_mean(tf.square(z[:, 0] - 3 - y[:, 0])),
                tf.reduce_mean(tf.square(z[:, 1] - 3)),
            )
        of_one, of_two = tape.gradient(one, variables), tape.gradient(two, variables)
        along = tf.add_n([tf.reduce_sum(a * b) for a, b in zip(of_one, of_two)])
        size = tf.add_n([tf.reduce_sum(b * b) for b in of_two])
        self.apply([a - tf.minimum(along, 0.0) / size * b + b for a, b in zip(of_one, of_two)])
        self.mine.update_state(one + two)
        return {"mine": self.mine.result()}


class Accumulating(Own):
    """Clips the gradients of two batches, whose losses are sums."""

    def __init__(self):
        super().__init__()
        self.count = self.add_weight((), "zeros", "int64", trainable=False, name="count")
        shapes = [(5, 6), (6,), (6, 2), (2,)]
        self.sums = [
            self.add_weight(s, "zeros", trainable=False, name=f"sum{i}") for i, s in enumerate(shapes)
        ]

    def loss_of(self, x, y):
        return tf.reduce_sum(tf.square(self(x) - y)) / 8

    def apply(self, gradients):
        self.count.assign_add(1)
        due = tf.cast(self.count % 2 == 0, "float64")
        for total, gradient in zip(self.sums, gradients):
            total.assign_add(gradient)
        clipped, _ = tf.clip_by_global_norm([total.value for total in self.sums], 0.3)
        super().apply([g * due for g in clipped])
        for total in self.sums:
            total.assign(total.value * (1 - due))


def fitted(make, x, replicas, **compiled):
    keras.utils.set_random_seed(3)
    strategy = tf.distribute.get_strategy() if replicas == 1 else mirrored(replicas)
    with strategy.scope():
        model = make()
        model.compile(keras.optimizers.SGD(0.2), "mse", **compiled)
        logs = model.fit(x, Y, batch_size=8, epochs=4, shuffle=False, verbose=0).history
        found = model.evaluate(x, Y, batch_size=8, verbose=0, return_dict=True)
    return [*model.get_weights(), *logs.values(), *found.values()]


@pytest.mark.parametrize(
    ("make", "x"),
    [
        pytest.param(Flooded, X, id="flooded"),
        pytest.param(FloodedLoss, X, id="flooded loss"),
        pytest.param(lambda: Net(Floor), X, id="floor"),
        pytest.param(Projecting, X, id="projecting"),
        pytest.param(Accumulating, X, id="accumulating"),
        pytest.param(Masked, PADDED, id="masked"),
        pytest.param(Masked, FEW, id="few"),
        pytest.param(Chosen, PADDED, id="chosen"),
        pytest.param(MaskedLoss, PADDED, id="masked loss"),
    ],
)
def test_what_the_first_rows_do_not_show_is_that_of_one_device(make, x):
    for three, one in zip(fitted(make, x, 3), fitted(make, x, 1)):
        np.testing.assert_allclose(three, one, rtol=1e-11, atol=1e-11)
