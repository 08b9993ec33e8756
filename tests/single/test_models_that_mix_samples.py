"""Models with computation across samples, in layers and between them, match a single device.

Two and three uneven replicas; the last batch leaves some without samples. Tolerance: float64 sums in a different order.
"""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from tests.helpers import FLOAT64, GradientsOfItsOwn, assert_close, mirrored, scope

pytestmark = pytest.mark.usefixtures("float64")
L, ops = keras.layers, keras.ops
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(15, 6)), RNG.normal(size=(15, 2))
BATCH = 7  # the last batch has one sample
ON_ONE = "on one replica"


def centered(x):
    return x - ops.mean(x, axis=0, keepdims=True)


class Centered(L.Layer):
    def call(self, x):
        return centered(x)


def between_layers():
    inputs = keras.Input((6,))
    return unisono.Model(inputs, L.Dense(2)(ops.tanh(centered(L.Dense(5)(inputs)))))


def reshaped_between_layers():
    inputs = keras.Input((6,))
    pairs = ops.reshape(L.Dense(6)(inputs)[:, ::-1], (-1, 2, 3))
    return unisono.Model(
        inputs, L.Dense(2)(ops.reshape(pairs, (-1, 6)) + ops.flip(L.Dense(6)(inputs), axis=0))
    )


class OfCall(unisono.Model):
    """Mixes samples in the model's own `call`, next to dropout."""

    def __init__(self, mix=centered, dropped=0.0):
        super().__init__()
        self.first, self.drop, self.last, self.mix = L.Dense(6), L.Dropout(dropped, seed=3), L.Dense(2), mix

    def call(self, x, training=False):
        return self.last(self.drop(ops.tanh(self.mix(self.first(x))), training=training))


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


class InFunction(L.Layer):
    @tf.function
    def call(self, x):
        return centered(x)


class InLoop(L.Layer):
    def call(self, x):
        return tf.while_loop(
            lambda i, x: i < 2, lambda i, x: (i + 1, x - 0.5 * tf.reduce_mean(x, 0)), (0, x)
        )[1]


class AlongRows(L.Layer):
    def call(self, x):
        return tf.scan(lambda before, x: 0.9 * before + 0.1 * x, x)


class NextToRows(L.Layer):
    """A mean over samples next to another axis of unknown size."""

    def call(self, x):
        return ops.mean(centered(ops.reshape(x, (ops.shape(x)[0], -1, 1))), axis=2)


class Limited(L.Layer):
    """Keeps the first three samples of each class; the first batch does not reach that limit."""

    def call(self, x):
        kinds = ops.one_hot(ops.argmax(x, axis=-1), 5, dtype=x.dtype)
        return x * ops.cast(ops.max(ops.cumsum(kinds, axis=0) * kinds, axis=1) <= 3.0, x.dtype)[:, None]


class OfClasses(L.Layer):
    """Subtracts from each sample the mean of its class."""

    def call(self, x):
        kinds = tf.cast(x[:, 0] > 0, tf.int32)
        return x - tf.gather(tf.math.unsorted_segment_mean(x, kinds, 2), kinds)


def centered_groups(x):
    """Groups of four samples, as of video frames: other batch sizes are an error."""
    groups = ops.reshape(x, (-1, 4, 5))
    return ops.reshape(groups - ops.mean(groups, axis=1, keepdims=True), (-1, 5))


class Groups(L.Layer):
    def call(self, x):
        return centered_groups(x)


class Deviation(L.Layer):
    """The standard deviation of a batch as one more feature, as in GAN discriminators."""

    def call(self, x):
        deviation = ops.mean(ops.sqrt(ops.var(x, axis=0) + 1e-3))
        return ops.concatenate([x, ops.ones_like(x[:, :1]) * deviation], axis=1)


class FirstRow(L.Layer):
    def call(self, x):
        return x - x[0]


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


class Sorted(L.Layer):
    """Compares with the median, for several inputs and outputs."""

    def call(self, inputs):
        middle = ops.sort(inputs["x"], axis=0)[ops.shape(inputs["x"])[0] // 2]
        return {"x": inputs["x"] - middle, "y": inputs["y"] * 2.0}


class Pair(L.Layer):
    def build(self, shape):
        self.sorted = Sorted()

    def call(self, x):
        out = self.sorted({"x": x, "y": x + 1.0})
        return out["x"] + out["y"]


class Grouped(L.Layer):
    """The deviation within groups of samples formed by a reshape: it mixes samples, without a batch-wide statistic."""

    def call(self, x):
        groups = ops.reshape(x[: ops.shape(x)[0] // 2 * 2], (2, -1, 5))
        deviation = ops.sqrt(ops.var(groups, axis=0) + 1e-3)
        return x + ops.concatenate([deviation, deviation, x], axis=0)[: ops.shape(x)[0]]


class Similar(L.Layer):
    """Attention between samples."""

    def call(self, x):
        weights = ops.softmax(ops.matmul(x, ops.transpose(x)), axis=-1)
        return x + ops.matmul(weights, x)


class Rolled(L.Layer):
    """Mixes each sample with the one before, as mixup does."""

    def call(self, x, training=False):
        return 0.7 * x + 0.3 * ops.roll(x, 1, axis=0) if training else x


class CenteredByAll(L.Layer):
    """Asks for the samples of all replicas."""

    def call(self, x):
        return x - ops.mean(unisono.distribute.gather(x), axis=0, keepdims=True)


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


class Recurrent(L.Layer):
    def build(self, shape):
        self.cell = L.GRU(4)
        self.attention = L.MultiHeadAttention(1, 2)

    def call(self, x):
        x = ops.reshape(x, (-1, 3, 2))
        return self.cell(self.attention(x, x))


def groups_between_layers():
    inputs = keras.Input((6,))
    return unisono.Model(inputs, L.Dense(2)(centered_groups(L.Dense(5)(inputs))))


def chain(*layers):
    return unisono.Sequential([keras.Input((6,)), L.Dense(5), *layers, L.Dense(2)])


def inner_model():
    inputs = keras.Input((5,))
    return chain(keras.Model(inputs, centered(inputs)), L.Activation("tanh"))


MODELS = {
    "between layers": between_layers,
    "reshaped between layers": reshaped_between_layers,
    "in call": OfCall,
    "in an own step": CustomStep,
    "in an own prediction": OwnPrediction,
    "in a layer that the model does not hold": lambda: OfCall(Untracked([Centered()]).__call__),
}
LAYERS = {
    "Lambda": lambda: chain(L.Lambda(lambda x: x - tf.reduce_mean(x, 0))),
    "an activation": lambda: chain(L.Dense(5, activation=centered)),
    "a partial activation": lambda: chain(L.Dense(5, activation=functools.partial(ops.flip, axis=0))),
    "softmax over samples": lambda: chain(L.Softmax(axis=0), L.Lambda(lambda x: x * 1.0)),
    "an inner model": inner_model,
    "a function": lambda: chain(InFunction()),
    "a loop": lambda: chain(InLoop()),
    "a scan": lambda: chain(AlongRows()),
    "another axis of unknown length": lambda: chain(NextToRows(), L.Reshape((5,))),
    "a limit": lambda: chain(Limited()),
    "means of classes": lambda: chain(OfClasses()),
    "a deviation": lambda: chain(Deviation()),
    "the first sample": lambda: chain(FirstRow()),
    "a hand-written normalization": lambda: chain(Normalized()),
    "a layer in a layer": lambda: chain(Block()),
    "a median": lambda: chain(Pair()),
    "groups": lambda: chain(Grouped()),
    "attention between samples": lambda: chain(Similar()),
    "mixup": lambda: chain(Rolled()),
}


def numbers(make, replicas, x=X, y=Y, batch=BATCH, **options):
    keras.utils.set_random_seed(3)
    with scope(mirrored(replicas) if replicas > 1 else None), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = make()
        model.compile(keras.optimizers.SGD(0.05), "mse", **options)
        fit = {"batch_size": batch, "epochs": 2, "shuffle": False, "verbose": 0}
        history = model.fit(x, y, validation_data=(x, y), **fit)
        predictions = model.predict(x, batch_size=batch, verbose=0)
    found = [[v.numpy() for v in model.variables if v.dtype.startswith("float")], predictions]
    return [*found, list(history.history.values())], [str(each.message) for each in said]


@pytest.mark.short(
    *("a loop-2", "a limit-2", "between layers-2", "in an own prediction-2", "an inner model-2"),
    *("mixup-3", "a median-2", "groups-2", "the first sample-3"),
)
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("name", {**MODELS, **LAYERS})
def test_model_that_mixes_samples_matches_one_device(name, replicas):
    make = {**MODELS, **LAYERS}[name]
    found, said = numbers(make, replicas)
    assert_close(found, numbers(make, 1)[0], FLOAT64, "numbers")
    assert not any(ON_ONE in each for each in said)


@pytest.mark.short("eager")
@pytest.mark.parametrize(
    "options", [{"run_eagerly": True}, {"jit_compile": True}], ids=["eager", "jit_compile"]
)
def test_compiled_and_eager_steps_match_one_device(options):
    def make():
        return chain(Centered())

    found, _ = numbers(make, 3, **options)
    assert_close(found, numbers(make, 1)[0], FLOAT64, "numbers")


@pytest.mark.parametrize("make", [lambda: chain(Groups()), groups_between_layers], ids=["layer", "model"])
def test_groups_of_samples_that_a_replica_cannot_make_are_those_of_one_device(make):
    data = {"x": np.concatenate([X, X[:1]]), "y": np.concatenate([Y, Y[:1]]), "batch": 8}
    found, _ = numbers(make, 3, **data)
    assert_close(found, numbers(make, 1, **data)[0], FLOAT64, "numbers")


class WithTable(L.Layer):
    """Mixes samples, and has a second input without a batch axis."""

    def call(self, x, table):
        near = ops.softmax(ops.matmul(x, ops.transpose(table)))
        return ops.matmul(near, table) + centered(x)


class Tables(unisono.Model):
    def __init__(self):
        super().__init__()
        self.first, self.mixing, self.last = L.Dense(6), WithTable(), L.Dense(2)
        self.table = self.add_weight(shape=(4, 6), name="table")

    def call(self, x):
        chosen = tf.boolean_mask(self.table + 0.0, [True, True, False, True])  # the size depends on the mask
        return self.last(self.mixing(self.first(x), chosen))


def test_layer_with_a_table_matches_one_device():
    found, said = numbers(Tables, 3)
    assert_close(found, numbers(Tables, 1)[0], FLOAT64, "numbers")
    assert not any(ON_ONE in each for each in said)


def each_row_between_layers():
    inputs = keras.Input((6,))
    halves = ops.reshape(L.Dense(6)(inputs)[:, ::2], (-1, 3, 1))
    weights = ops.softmax(ops.matmul(halves, ops.transpose(halves, (0, 2, 1))), axis=-1)
    flat = ops.reshape(ops.matmul(weights, halves), (-1, 3))
    return unisono.Model(inputs, L.Dense(2)(flat / (1.0 + ops.mean(flat, axis=1, keepdims=True) ** 2)))


NOT_MIXED = {
    "between layers": each_row_between_layers,
    "a layer": lambda: chain(L.Dense(6), OfEachRow()),
    "recurrent": lambda: chain(L.Dense(6), Recurrent()),
    "asks for all samples": lambda: chain(CenteredByAll()),
}


@pytest.mark.short("between layers", "a layer", "asks for all samples")
@pytest.mark.parametrize("name", NOT_MIXED)
def test_model_that_mixes_no_samples_by_itself_matches_one_device(name):
    found, said = numbers(NOT_MIXED[name], 2)
    assert_close(found, numbers(NOT_MIXED[name], 1)[0], FLOAT64, "numbers")
    assert not any(ON_ONE in each for each in said)
