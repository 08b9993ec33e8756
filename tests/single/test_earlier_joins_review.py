"""Numbers that are joined before a step is done with them, in the corners.

What is read twice, long computations, first batches that do not show what a number is, parts that are equal by chance,
assertions, tensors of before the step.
"""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

NUMBERS = np.random.default_rng(0)
X, Y = NUMBERS.normal(size=(16, 5)), NUMBERS.normal(size=(16, 2))
FULL = X.copy()
FULL[:7, 2] = 1.0  # the first batch has no padding
LATE = X.copy()
LATE[:7, 1] = -1.0  # of the first batch


class Stepping(unisono.Model):
    """Trains with the loss that `loss_of(model, data, each)` returns, with logs, from the loss of each row."""

    def __init__(self, loss_of, changed=None):
        super().__init__()
        self.dense, self.out = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2)
        self.scale = Scale()
        self.loss_of, self.changed = loss_of, changed or (lambda gradients: gradients)
        self.mean = keras.metrics.Mean()

    def call(self, x, training=False):
        return self.out(self.dense(self.scale(x)))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            each = tf.reduce_sum((self(data[0], training=True) - data[1]) ** 2, -1)
            loss, logs = self.loss_of(self, data, each)
        variables = self.trainable_variables
        gradients = self.changed(tape.gradient(loss, variables))
        self.optimizer.apply_gradients(zip(gradients, variables))
        return {"mine": loss, **logs}


class Scale(keras.layers.Layer):
    def build(self, shape):
        self.value = self.add_weight(shape=(), initializer="ones", trainable=False)

    def call(self, x):
        return x


def positive(data, column=0):
    return tf.cast(data[0][:, column] > 0, tf.float64)


def ratio(each, mask):
    return tf.math.divide_no_nan(tf.reduce_sum(each * mask), tf.reduce_sum(mask))


def state_read_twice(model, data, each):
    mask, scale = positive(data), model.scale.value
    return tf.reduce_sum(each * mask) * scale / (tf.reduce_sum(mask) + scale), {}


def state_read_twice_and_written(model, data, each):
    loss, logs = state_read_twice(model, data, each)
    model.scale.value.assign(model.scale.value + 1.0)
    return loss, logs


def ratio_of_all_rows_at_first(model, data, each):
    return ratio(each, positive(data, 2)), {}


def any_row(model, data, each):
    """In the first batch some row of each replica is positive."""
    mask = positive(data)
    return tf.where(tf.reduce_any(mask > 0), tf.reduce_sum(each * mask) / (tf.reduce_sum(mask) + 1), 0.0), {}


def largest_of_a_mask(model, data, each):
    mask = positive(data)
    return tf.reduce_max(mask) * tf.reduce_sum(each * mask) / (tf.reduce_sum(mask) + 1), {}


def class_that_comes_later(model, data, each):
    masks = [positive(data, column) for column in range(2)]
    return tf.add_n([1 - (tf.reduce_sum(tf.exp(-each) * m) + 1) / (tf.reduce_sum(m) + 1) for m in masks]), {}


def ratio_that_begins_later(model, data, each):
    part = ratio(each, positive(data, 1))
    return tf.reduce_mean(each) + part, {"part": part}


def median_that_begins_later(model, data, each):
    rows = tf.boolean_mask(each, positive(data, 1) > 0)
    chosen = tf.sort(tf.concat([rows, [0.0]], 0))
    part = chosen[tf.shape(chosen)[0] // 2]
    return tf.reduce_mean(each) + part**2, {"part": part**2}


def tensor_of_before(model, data, each):
    model.mean.update_state(FIXED)
    return ratio(each, positive(data)), {"fixed": FIXED, "fed": model.mean.result()}


def compiled(model, data, each):
    loss = model.compute_loss(data[0], data[1], model(data[0], training=True))
    return tf.sqrt(loss), {"root": tf.sqrt(loss)}


FIXED = tf.constant(0.25, tf.float64)


def assert_same_as_one_device(loss_of, x=X, reduction=None, changed=None, batches=None):
    keras.config.set_floatx("float64")
    shown = []
    for on in (None, helpers.strategy("mirrored3")):
        keras.utils.set_random_seed(1)
        with helpers.scope(on):
            model = Stepping(loss_of, changed)
            model(x[:1])
            loss = None if reduction is None else keras.losses.MeanSquaredError(reduction=reduction)
            model.compile(keras.optimizers.SGD(0.05, momentum=0.5), loss, jit_compile=False)
        data = (x, Y) if batches is None else (batches(x),)
        history = model.fit(
            *data, batch_size=7 if batches is None else None, epochs=2, shuffle=False, verbose=0
        )
        shown.append([*model.get_weights(), *history.history.values()])
    helpers.assert_close(shown[1], shown[0], helpers.FLOAT64)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "loss_of",
    [
        state_read_twice,
        state_read_twice_and_written,
        any_row,
        largest_of_a_mask,
        tensor_of_before,
    ],
)
def test_parts(loss_of, caplog):
    assert_same_as_one_device(loss_of)
    assert not caplog.records


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("loss_of", [class_that_comes_later, ratio_that_begins_later])
def test_parts_that_are_zero_in_the_first_batch(loss_of):
    assert_same_as_one_device(loss_of, LATE)


@pytest.mark.filterwarnings("error")
def test_mean_over_what_is_not_masked_where_nothing_is_in_the_first_batch():
    assert_same_as_one_device(ratio_of_all_rows_at_first, FULL)


@pytest.mark.filterwarnings("ignore:.*looks across the rows")
def test_gradient_that_looks_across_rows_after_the_first_batch():
    assert_same_as_one_device(median_that_begins_later, LATE)


def known_rows(x):
    return tf.data.Dataset.from_tensor_slices((x, Y)).batch(7, drop_remainder=True)


@pytest.mark.parametrize("batches", [None, known_rows])
def test_loss_of_keras_that_is_a_sum(batches):
    assert_same_as_one_device(compiled, reduction="sum", batches=batches)


@pytest.mark.filterwarnings("ignore:.*looks across the rows")
def test_loss_of_keras_whose_divisor_the_replicas_exchange():
    def weighted(model, data, each):
        outputs = model(data[0], training=True)
        loss = model.compute_loss(data[0], data[1], outputs, tf.abs(data[0][:, 0]))
        return tf.sqrt(loss), {}

    assert_same_as_one_device(weighted, reduction="mean_with_sample_weight")


def test_step_that_does_not_compute_with_large_gradients():
    def clipped(gradients):
        norm = tf.linalg.global_norm(gradients)
        with tf.control_dependencies([tf.debugging.assert_less(norm, tf.constant(1e3, tf.float64))]):
            return tf.clip_by_global_norm(gradients, 0.3)[0]

    assert_same_as_one_device(lambda model, data, each: (tf.reduce_mean(each), {}), changed=clipped)
