"""Models with computation across samples, in layers and between them, and with state, match a single device.

Two and three uneven replicas; the last batch leaves some without samples.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT64, GradientsOfItsOwn, assert_close, mirrored
from parity import Balanced, OfCall, X, Y, assert_parity, centered, trained

import unisono
from unisono.distribute import gather

pytestmark = pytest.mark.usefixtures("float64")
L, ops = keras.layers, keras.ops


def next_to_rows(x):
    """A mean over samples next to another axis of unknown size."""
    return ops.mean(centered(ops.reshape(x, (ops.shape(x)[0], -1, 1))), axis=2)


def next_to_a_loop(x):
    return tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x - 0.5 * tf.reduce_mean(x, 0)), (0, x))[1]


def centered_groups(x):
    """Groups of four samples, as of video frames: other batch sizes are an error."""
    groups = ops.reshape(x, (-1, 4, 5))
    return ops.reshape(groups - ops.mean(groups, axis=1, keepdims=True), (-1, 5))


class Applied(L.Layer):
    """Calls a function; `train_only`: returns its input outside of training."""

    def __init__(self, function, train_only=False):
        super().__init__()
        self.function, self.train_only = function, train_only

    def call(self, x, training=False):
        return x if self.train_only and not training else self.function(x)


class CustomStep(GradientsOfItsOwn, OfCall):
    pass


class OwnPrediction(OfCall):
    def __init__(self):
        super().__init__(mix=ops.tanh)

    def predict_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        return centered(self(x, training=False))


class Untracked(list):
    """Hides a layer from the model that calls it."""

    def __call__(self, x):
        return self[0](x)


class Normalized(L.Layer):
    """A hand-written batch normalization, with averages for inference, a weight and a loss."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
        self.variance = self.add_weight(shape=(shape[-1],), initializer="ones", trainable=False)
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x, training=False):
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = ops.mean(x, 0), ops.var(x, 0)
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
            self.variance.assign(0.9 * self.variance + 0.1 * variance)
            self.add_loss(1e-2 * ops.mean(ops.square(variance - 1.0)))
        return (x - mean) / ops.sqrt(variance + 1e-3) * self.scale


class Block(L.Layer):
    """Contains a layer with computation across samples, and stores an average of its output."""

    def build(self, shape):
        self.mixing, self.dense = Normalized(), L.Dense(6, activation="tanh")
        self.average = self.add_weight(shape=(6,), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        x = self.mixing(self.dense(x), training=training)
        self.average.assign(0.9 * self.average + 0.1 * ops.mean(x, axis=0))
        return x


class OfEachRow(L.Layer):
    """Per-sample statistics, sizes, masks, weights, a loss: nothing across samples."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.add_loss(1e-3 * ops.mean(ops.square(x)))
        self.seen.assign(ops.max(x))
        rows = tf.shape(x)[0]
        x = (x - ops.mean(x, -1, keepdims=True)) / (ops.std(x, -1, keepdims=True) + 1e-3)
        x = ops.reshape(x, (rows, 2, 3)) + ops.cast(ops.arange(rows)[:, None, None] * 0, x.dtype)
        x = ops.reshape(x * ops.softmax(x, axis=1), (-1, 6)) * ops.mean(ops.square(self.scale))
        return ops.where(ops.any(x > 100.0), x * 0.0, x)


class Compares(L.Dense):
    """Adds a loss over all pairs of samples, and a mean over samples."""

    def call(self, x):
        own = super().call(x)
        rows = gather(own)
        self.add_loss(0.01 * tf.reduce_mean(tf.matmul(rows, rows, transpose_b=True) ** 2))
        self.add_loss(unisono.distribute.global_mean((own - 1) ** 2))
        return own


class Adaptive(L.Layer):
    """A probability that a batch mean adjusts between 0 and 1, as in adaptive augmentation."""

    def __init__(self, aggregation=None, in_branch=False):
        super().__init__()
        self.declared, self.in_branch = {"aggregation": aggregation} if aggregation else {}, in_branch

    def build(self, shape):
        self.probability = self.add_weight((), "zeros", trainable=False, **self.declared)

    def call(self, x, training=False):
        if training:
            step = ops.mean(ops.sign(x[:, 0])) * 0.6

            def moved():
                self.probability.assign(ops.clip(self.probability + step, 0.0, 1.0))
                return self.probability + 0.0

            if self.in_branch:
                tf.cond(self.probability < 10.0, moved, lambda: self.probability + 0.0)
            else:
                moved()
        return x * (1.0 + self.probability)


def between_layers(mix):
    inputs = keras.Input((6,))
    return unisono.Model(inputs, L.Dense(2)(mix(L.Dense(5)(inputs))))


def chain(*layers):
    return unisono.Sequential([keras.Input((6,)), L.Dense(5), *layers, L.Dense(2)])


def inner_model():
    inputs = keras.Input((5,))
    return chain(keras.Model(inputs, centered(inputs)), L.Activation("tanh"))


# A step captures eager tensors that are not small.
KEPT = ops.convert_to_tensor([[0, 1, 1, 0, 1, 1]] * 30, "int32")


def resized_where_equal(x):
    resized = L.Resizing(6, 1)(ops.reshape(x, [-1, 6, 1, 1]))
    equal = tf.reduce_any(tf.equal(KEPT, ops.cast(x > 0, "int32")[:, None]), 1)
    return tf.where(equal, ops.reshape(resized, [-1, 6]), 0.0)


def attention_of_one_group(x):
    queries, keys = ops.reshape(x, (-1, 2, 1, 1, 3)), ops.reshape(x, (-1, 2, 1, 3))
    weights = ops.softmax(ops.einsum("btkgh,bskh->bkgts", queries, keys))
    return ops.reshape(ops.einsum("bkgts,bskh->btkgh", weights, keys), (-1, 6))


MODELS = {
    "between layers": lambda: between_layers(lambda x: ops.tanh(centered(x))),
    "reordered between layers": lambda: between_layers(lambda x: x[:, ::-1] + ops.flip(x, axis=0)),
    "in call": OfCall,
    "in a custom step": CustomStep,
    "in a custom prediction": OwnPrediction,
    "in a layer that the model does not hold": lambda: OfCall(Untracked([Applied(centered)]).__call__),
    "a layer made in call, compared integers": lambda: OfCall(resized_where_equal),
    "attention of one group": lambda: OfCall(attention_of_one_group),
    "an activation": lambda: chain(L.Dense(5, activation=centered)),
    "a partial activation": lambda: chain(L.Dense(5, activation=functools.partial(ops.flip, axis=0))),
    "softmax over samples": lambda: chain(L.Softmax(axis=0), L.Lambda(lambda x: x * 1.0)),
    "an inner model": inner_model,
    "a function": lambda: chain(Applied(tf.function(centered))),
    "a loop": lambda: chain(Applied(next_to_a_loop)),
    "another axis of unknown length": lambda: chain(Applied(next_to_rows), L.Reshape((5,))),
    "gathered samples": lambda: chain(Applied(lambda x: x - ops.mean(gather(x), axis=0))),
    "gathered pairs": lambda: chain(Compares(4)),
    "gathered pairs in a model without inputs": lambda: unisono.Sequential([Compares(4), L.Dense(2)]),
    "samples": lambda: chain(L.Dense(6), OfEachRow()),
    "a layer in a layer": lambda: chain(Block()),
    "an added loss": lambda: chain(Balanced()),
    "clipped state": lambda: chain(Adaptive()),
    "declared state": lambda: chain(Adaptive(aggregation="sum")),
    "state in a branch": lambda: chain(Adaptive(in_branch=True)),
}


@pytest.mark.long
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_model_matches_one_device(name, replicas):
    assert_parity(MODELS[name], replicas)


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{"run_eagerly": True}, {"jit_compile": True}], ids=["eager", "jit_compile"]
)
def test_compiled_and_eager_steps_match_one_device(options):
    assert_parity(lambda: chain(Applied(centered)), 3, **options)


@pytest.mark.parametrize(
    "make",
    [lambda: chain(Applied(centered_groups)), lambda: between_layers(centered_groups)],
    ids=["layer", "model"],
)
@pytest.mark.long
def test_groups_of_samples_that_a_replica_cannot_make_are_those_of_one_device(make):
    data = {"x": np.concatenate([X, X[:1]]), "y": np.concatenate([Y, Y[:1]]), "batch": 8}
    found, _ = trained(make, 3, **data)
    assert_close(found, trained(make, 1, **data)[0], FLOAT64, "results")


def test_gather_outside_of_a_replica_is_an_error():
    with mirrored(2).scope(), pytest.raises(RuntimeError, match=r"outside `strategy\.run`"):
        gather(tf.ones([2, 3]))


@pytest.mark.long
def test_clipped_state_reaches_its_bounds():
    (variables, *_), _ = trained(MODELS["clipped state"], 1)
    assert any(v.shape == () and v in (0.0, 1.0) for v in variables)


@pytest.mark.long
@pytest.mark.parametrize("eager", [False, True])
def test_outputs_in_another_order_match_one_device(eager):
    """Two views of each sample, encoded at once, one after the other."""

    def two_views(x):
        return ops.concatenate([x, 0.9 * x + 0.1], axis=0)

    def loss(y, z):
        z = z / ops.norm(z, axis=1, keepdims=True)
        rows = ops.shape(z)[0] // 2
        logits = ops.matmul(z[:rows], ops.transpose(z[rows:]))
        return ops.mean(
            keras.losses.sparse_categorical_crossentropy(ops.arange(rows), logits, from_logits=True)
        )

    assert_parity(lambda: between_layers(two_views), 3, loss=loss, run_eagerly=eager)
