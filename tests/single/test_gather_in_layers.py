"""`gather` and `global_mean` in layers: models can be built under a strategy and match a single device."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

NUMBERS = np.random.default_rng(0)
X, Y = NUMBERS.normal(size=(11, 3)), NUMBERS.normal(size=(11, 2))  # batches of 4, 4 and 3 samples


class Compares(keras.layers.Dense):
    """Adds a loss over all pairs of samples, and a mean over samples."""

    def call(self, x):
        own = super().call(x)
        rows = unisono.distribute.gather(own)
        self.add_loss(tf.reduce_mean(tf.matmul(rows, rows, transpose_b=True) ** 2))
        self.add_loss(unisono.distribute.global_mean((own - 1) ** 2))
        return own


def functional():
    inputs = keras.Input((3,))
    return unisono.Model(inputs, keras.layers.Dense(2)(Compares(4)(inputs)))


def deferred():
    return unisono.Sequential([Compares(4), keras.layers.Dense(2)])


@pytest.mark.short("functional")
@pytest.mark.parametrize("make", [functional, deferred])
def test_layer_that_gathers_trains_as_on_one_device(make):
    keras.config.set_floatx("float64")
    shown = []
    for on in (None, helpers.strategy("mirrored3")):
        keras.utils.set_random_seed(1)
        with helpers.scope(on):
            model = make()
            model.compile("sgd", "mse", jit_compile=False)
        history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        shown.append([*model.get_weights(), *history.values(), model.predict(X, batch_size=4, verbose=0)])
    helpers.assert_close(shown[1], shown[0], helpers.FLOAT64)


class Whitened(keras.layers.Layer):
    """Normalizes with the mean and covariance of the batch: each output depends on all samples."""

    def call(self, x):
        rows = unisono.distribute.gather(x)
        centered = rows - tf.reduce_mean(rows, 0)
        covariance = tf.matmul(centered, centered, transpose_a=True) / tf.cast(tf.shape(rows)[0], rows.dtype)
        lower = tf.linalg.cholesky(covariance + 0.1 * tf.eye(4, dtype=rows.dtype))
        return tf.transpose(tf.linalg.triangular_solve(lower, tf.transpose(x - tf.reduce_mean(rows, 0))))


class Contrasted(unisono.Model):
    """Each replica compares its samples with all others, as image-text contrastive losses do."""

    def __init__(self):
        super().__init__()
        self.images, self.texts = keras.layers.Dense(4), keras.layers.Dense(4)
        self.temperature = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return self.images(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            images, texts = self.images(x), self.texts(y)
            all_images, all_texts = unisono.distribute.gather((images, texts))
            own = tf.reduce_sum(images * texts, -1)
            logits = [
                tf.matmul(images, all_texts, transpose_b=True),
                tf.matmul(texts, all_images, transpose_b=True),
            ]
            each = [
                tf.reduce_logsumexp(self.temperature * part, -1) - self.temperature * own for part in logits
            ]
            loss = tf.reduce_mean(each[0] + each[1])
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def whitened():
    inputs = keras.Input((3,))
    return unisono.Model(inputs, keras.layers.Dense(2)(Whitened()(keras.layers.Dense(4)(inputs))))


@pytest.mark.short("2-Contrasted", "2-whitened")
@pytest.mark.parametrize("make", [whitened, Contrasted])
@pytest.mark.parametrize("replicas", [2, 3])
def test_own_samples_compared_with_all_have_the_gradient_of_one_device(make, replicas, recwarn):
    keras.config.set_floatx("float64")
    shown = []
    for on in (None, helpers.mirrored(replicas)):
        keras.utils.set_random_seed(1)
        with helpers.scope(on):
            model = make()
            model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        history = model.fit(X, Y, batch_size=4, epochs=3, shuffle=False, verbose=0).history
        shown.append([*model.get_weights(), *history.values()])
    helpers.assert_close(shown[1], shown[0], helpers.FLOAT64)
    assert not [each for each in recwarn if "replica" in str(each.message)], "all replicas share the work"


def test_gather_outside_of_a_replica_is_still_an_error():
    with (
        helpers.strategy("mirrored2").scope(),
        pytest.raises(RuntimeError, match=r"outside of `strategy\.run`"),
    ):
        unisono.distribute.gather(tf.ones([2, 3]))
