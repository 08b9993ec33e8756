"""Programs that break without a function that is replaced in steps; see `changes_off.py`."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from changes_off import DIFFERS, breaks
from helpers import descend, scope

import unisono

X = np.random.default_rng(5).normal(size=(6, 3)).astype("float32")
Y = X[:, :1] ** 2
LEFT_BRANCH = "is assigned in a graph whose results the step does not know"


def two() -> tf.distribute.Strategy:
    """Return a strategy of two replicas."""
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def dense(**options: Any) -> keras.layers.Layer:
    """Return a layer that always starts with the same weights."""
    return keras.layers.Dense(1, kernel_initializer="ones", **options)


def fit(model: Any, x: Any = X, y: Any = Y, optimizer: Any = None, **given: Any) -> list[Any]:
    """Train a model for one epoch; return its weights and its logs."""
    model.compile(optimizer or keras.optimizers.SGD(0.1), given.pop("loss", "mse"), jit_compile=False)
    given = {"batch_size": 6, "shuffle": False, "verbose": 0, **given}
    history = model.fit(x, y, **given).history
    return [*model.get_weights(), *history.values()]


def on_one_and_two(make: Any, **given: Any) -> tuple[list[Any], list[Any]]:
    """Return what `fit` returns for two replicas and for one device."""
    found = []
    for strategy in (two(), None):
        with scope(strategy):
            model = make()
        found.append(fit(model, **given))
    return found[0], found[1]


class OwnStep(unisono.Sequential):
    """A custom step that computes `loss_of(its output, y)`."""

    def __init__(self, loss_of: Any = None, layers: Any = None) -> None:
        super().__init__(layers or [keras.Input((3,)), dense()])
        self.loss_of = loss_of or (lambda model, outputs, y: tf.reduce_mean((outputs - y) ** 2))
        self.count = keras.Variable(0.0, trainable=False)

    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        return {
            "loss": descend(lambda: self.loss_of(self, self(x), y), self.optimizer, self.trainable_variables)
        }


@breaks("losses.Loss.__call__")
def micro_batches_of_different_sizes() -> Any:
    """The weighted mean over an accumulated batch, in micro-batches of 4 and 2, is that of one batch."""
    found = []
    for package, options in (
        (unisono, {"optimizer": unisono.optimizers.SGD(0.1, gradient_accumulation_steps=2), "batch_size": 4}),
        (keras, {}),
    ):
        model = package.Sequential([keras.Input((3,)), dense()])
        loss = keras.losses.MeanSquaredError("mean_with_sample_weight")
        found.append(fit(model, loss=loss, sample_weight=np.arange(6.0), **options)[:2])
    return found


@breaks("layers.Layer._maybe_build", says="Need to be inside")
def layer_that_a_step_calls_first() -> Any:
    """Its variables would be made in the graph of the step."""
    strategy = two()
    with strategy.scope():
        layer = dense()

    @unisono.replica_step
    def step(x: Any) -> Any:
        return tf.reduce_sum(layer(x))

    per_replica = tf.function(lambda: strategy.run(step, (tf.constant(X[:3]),)))()
    return [sum(each.numpy() for each in strategy.experimental_local_results(per_replica))], [2 * X[:3].sum()]


@breaks("BaseOptimizer.apply")
def optimizer_outside_the_attributes() -> Any:
    """A closure holds it."""

    def make() -> Any:
        held = [keras.optimizers.SGD(0.1)]

        class Own(OwnStep):
            def train_step(self, data: Any) -> Any:
                x, y = data[:2]
                loss = lambda: tf.reduce_mean((self(x) - y) ** 2)  # noqa: E731
                return {"loss": descend(loss, held[0], self.trainable_variables)}

        return Own()

    return on_one_and_two(make)


class AddsLoss(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(keras.ops.mean(x**2))
        return x


@breaks("layers.Layer.add_loss")
def losses_of_layers_that_only_an_earlier_step_called() -> Any:
    """Layers know their losses by ids, which tensors of a later step may get: it would find one of 50 again."""
    earlier, layer = [AddsLoss() for _ in range(50)], AddsLoss()

    @unisono.replica_step
    def first(x: Any) -> Any:
        for each in earlier:
            x = each(x)
        return x

    @unisono.replica_step
    def second(x: Any) -> Any:
        layer(x)
        return tf.add_n([loss for each in (*earlier, layer) for loss in each.losses])

    found = []
    for _ in range(6):
        tf.distribute.get_strategy().run(first, (tf.constant(X),))
        found.append(tf.distribute.get_strategy().run(second, (tf.constant(X),)))
    return [found], [6 * [np.mean(X**2)]]


class ByPath(keras.regularizers.Regularizer):
    def __call__(self, weight: Any) -> Any:
        return keras.ops.sum(weight.value**2) if "kernel" in weight.path else 0.0


@breaks("layers.Layer._get_regularization_losses", says="has no attribute 'path'")
def regularizer_that_reads_the_path() -> Any:
    return [
        fit(package.Sequential([keras.Input((3,)), dense(kernel_regularizer=ByPath())]))[:2]
        for package in (unisono, keras)
    ]


@breaks("BackendVariable.handle", says="has no attribute 'handle'")
def weight_that_is_read_after_it_was_moved() -> Any:
    """As in sharpness-aware minimization: the gradient is taken at weights that the step has assigned."""

    def loss(model: Any, outputs: Any, y: Any) -> Any:
        kernel = model.layers[0].kernel
        kernel.assign(kernel + 0.5)
        with tf.GradientTape() as tape:
            inner = tf.reduce_sum(tf.matmul(tf.ones((1, 3)), kernel) ** 2)
        (found,) = tape.gradient(inner, [kernel])
        return tf.reduce_mean((outputs - y) ** 2) + tf.reduce_sum(found)

    return on_one_and_two(lambda: OwnStep(loss))


@breaks("SeedGenerator.next", says="the same mask")
def masks_of_two_replicas() -> None:
    """A custom loop calls a model of ours, whose random layers draw other numbers on each replica."""
    strategy = two()
    with strategy.scope():
        model = unisono.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=1)])
    call = lambda: model(tf.ones((1, 64)), training=True)  # noqa: E731
    found = tf.function(lambda: strategy.run(call))()
    first, second = strategy.experimental_local_results(found)
    assert not np.array_equal(first, second), "the same mask"


@breaks("backend_nn._compute_moments_sync", says=DIFFERS)
def variance_of_large_values() -> Any:
    """The difference of squares would have the digits that 10**6 leaves of float32."""
    x = (1000 + X).astype("float32")
    with two().scope():
        model = unisono.Sequential(
            [keras.Input((3,)), keras.layers.BatchNormalization(synchronized=True), dense()]
        )
    fit(model, x=x)
    return [model.layers[0].moving_variance], [0.99 + 0.01 * np.var(x, 0, dtype="float64")]


def counts(loss: Any) -> Any:
    """Return what a step finds whose loss also counts in `model.count`, and what is right."""
    with two().scope():
        model = OwnStep(loss)
    fit(model)
    return [model.count.numpy()], [2.0]


@breaks("Function.__call__")
def function_that_writes() -> Any:
    @tf.function
    def count(model: Any) -> None:
        model.count.assign(model.count + 2.0)

    def loss(model: Any, outputs: Any, y: Any) -> Any:
        count(model)
        return tf.reduce_mean((outputs - y) ** 2)

    return counts(loss)


@breaks("cond_module.cond", says=LEFT_BRANCH)
def branch_that_writes() -> Any:
    def loss(model: Any, outputs: Any, y: Any) -> Any:
        tf.cond(tf.reduce_sum(y) > 0, lambda: model.count.assign(2.0), lambda: model.count.assign(3.0))
        return tf.reduce_mean((outputs - y) ** 2)

    return counts(loss)


@breaks("while_module.while_loop", says=LEFT_BRANCH)
def loop_that_writes() -> Any:
    def loss(model: Any, outputs: Any, y: Any) -> Any:
        def body(number: Any) -> Any:
            model.count.assign(model.count + 1.0)
            return (number + 1,)

        tf.while_loop(lambda number: number < 2, body, (0,))
        return tf.reduce_mean((outputs - y) ** 2)

    return counts(loss)


@breaks("FuncGraph._create_op_internal", says="lower_diag_index is out of bound")
def size_of_matrices_of_diagonals() -> Any:
    """TensorFlow takes the unknown length of the diagonal for -1, and the size for 0."""

    def loss(model: Any, outputs: Any, y: Any) -> Any:
        matrix = tf.linalg.diag(outputs[:, 0], k=1)
        return tf.reduce_sum(matrix) / tf.cast(tf.shape(matrix)[0], tf.float32)

    model = OwnStep(loss)
    found = fit(model, batch_size=None, x=tf.data.Dataset.from_tensor_slices((X, Y)).batch(6), y=None)
    return found[-1:], [[X.sum() / 7]]


@breaks("RegisterGradient.__call__", says="the graph is kept")
def graph_of_a_custom_gradient() -> None:
    class Held:
        pass

    def train() -> Any:
        held = Held()

        @tf.custom_gradient
        def same(x: Any) -> Any:
            return tf.identity(x), lambda given: (held, given)[1]

        def loss(model: Any, outputs: Any, y: Any) -> Any:
            return tf.reduce_mean((same(outputs) - y) ** 2)

        fit(OwnStep(loss))
        return weakref.ref(held)

    held = train()
    keras.backend.clear_session()
    gc.collect()
    assert held() is None, "the graph is kept"
