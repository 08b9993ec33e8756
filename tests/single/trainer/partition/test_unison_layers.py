"""Layers that depend on the entire batch, and layers that assign weights in the step."""

from __future__ import annotations

import helpers
import keras
import numpy as np
import pytest

import unisono

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(19, 5)).astype("float32")
Y = X[:, :1] * X[:, 1:2]
# In one graph; and eagerly, at a quarter of the cost of tracing, with a partial batch of 3 samples.
REPLICAS = [("mirrored3", False, 16), ("central2", True, 19)]


def fitted(replicas, layer, cls=unisono.Sequential, eager=True, rows=19):
    """History and variables after two epochs in batches of 8 samples."""

    def make():
        return cls([keras.Input((5,)), keras.layers.Dense(6, "tanh"), layer(), keras.layers.Dense(1)])

    compiled = {"optimizer": lambda: keras.optimizers.Adam(0.01), "run_eagerly": eager}
    model, history = helpers.train(make, (X[:rows], Y[:rows]), replicas, {"batch_size": 8}, **compiled)
    return [history["loss"], *(np.array(v) for v in [*model.variables, *model.optimizer.variables])]


def mean_of_squares(output):
    return 0.1 * keras.ops.mean(keras.ops.square(output))


class LargestRow(keras.regularizers.Regularizer):
    """Depends on all samples of the batch: no sum over replicas can compute it."""

    def __call__(self, x):
        return 0.1 * keras.ops.max(keras.ops.sum(keras.ops.square(x), axis=-1))


@pytest.mark.long
def test_activity_regularizers_have_their_values_of_one_device():
    regularizers = [mean_of_squares, LargestRow(), keras.regularizers.L1L2(0.01, 0.01)]

    def layers(used):
        kept = [regularizer if regularizer in used else None for regularizer in regularizers]
        return lambda: keras.Sequential([keras.layers.Dense(4, activity_regularizer=each) for each in kept])

    for replicas, eager, rows in REPLICAS:
        one = fitted("none", layers(regularizers), rows=rows)
        several = fitted(replicas, layers(regularizers), eager=eager, rows=rows)
        helpers.assert_close(several, one, helpers.FLOAT32, replicas)
    for regularizer in regularizers:
        without = fitted("none", layers([each for each in regularizers if each is not regularizer]))
        assert one[0][0] - without[0][0] > 1e-3, f"{regularizer} must be in the loss"


class AddsLosses(keras.layers.Layer):
    """Adds a sum over samples, as in Keras' own example, and means, one of them over several dimensions."""

    def call(self, x):
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        self.add_loss([0.1 * keras.ops.mean(x), 0.01 * keras.ops.sum(keras.ops.abs(x)) / x.shape[-1]])
        return x


class AddsOfItsOwn(unisono.Sequential):
    def call(self, inputs, training=None, mask=None):
        outputs = super().call(inputs, training=training)
        self.add_loss(0.01 * keras.ops.sum(outputs))
        return outputs


@pytest.mark.parametrize("cls", [unisono.Sequential, AddsOfItsOwn])
@pytest.mark.long
def test_added_sums_and_means_have_their_values_of_one_device(cls):
    def layer():
        parts = [keras.layers.Dense(4), AddsLosses(), keras.layers.Dropout(0.0), AddsLosses()]
        return keras.Sequential(parts)

    for replicas, eager, rows in REPLICAS:
        several = fitted(replicas, layer, cls, eager or cls is AddsOfItsOwn, rows)
        helpers.assert_close(several, fitted("none", layer, cls, rows=rows), helpers.FLOAT32, replicas)


@pytest.mark.long
def test_one_layer_that_adds_losses_twice_in_a_step():
    def train(replicas):
        keras.utils.set_random_seed(3)
        with helpers.scope(helpers.strategy(replicas)):
            inputs, twice = keras.Input((5,)), AddsLosses()
            model = unisono.Model(inputs, keras.layers.Dense(1)(twice(keras.layers.Dense(4)(twice(inputs)))))
            model.compile("sgd", "mse", run_eagerly=replicas == "none")
        history = model.fit(X[:16], Y[:16], batch_size=8, shuffle=False, verbose=0).history
        return [history["loss"], model.evaluate(X, Y, verbose=0), *model.get_weights()]

    helpers.assert_close(train("mirrored3"), train("none"), helpers.FLOAT32)


def test_regularizer_that_reads_all_samples_is_exact_where_xla_compiles_what_each_replica_computes():
    losses = {}
    for replicas in ("none", "mirrored2"):
        keras.utils.set_random_seed(3)
        with helpers.scope(helpers.strategy(replicas)):
            layers = [keras.Input((5,)), keras.layers.Dense(1, activity_regularizer=LargestRow())]
            model = unisono.Sequential(layers)
            model.compile("sgd", "mse", jit_compile=replicas != "none")
        losses[replicas] = model.fit(X, Y, verbose=0).history["loss"]
    helpers.assert_close(losses["mirrored2"], losses["none"], helpers.FLOAT32)


class CustomStep(helpers.GradientsOfItsOwn, unisono.Sequential):
    """A `Sequential` with a custom step."""


def spectral():
    return keras.layers.SpectralNormalization(keras.layers.Dense(4))


@pytest.mark.short("CustomStep")
@pytest.mark.parametrize("cls", [unisono.Sequential, CustomStep])
def test_weight_that_a_layer_assigns_in_the_step_trains_as_in_keras(cls):
    for replicas, eager, rows in REPLICAS:
        one = fitted("none", spectral, cls, rows=rows)
        several = fitted(replicas, spectral, cls, eager, rows)
        helpers.assert_close(several, one, helpers.FLOAT32, replicas)
    expected = fitted("none", spectral, keras.Sequential)
    for eager in (True, False):
        own = fitted("none", spectral, cls, eager)
        helpers.assert_close(own[1:], expected[1:], helpers.FLOAT32, "one device compared with Keras")


def test_weight_is_not_assigned_before_each_replica_has_read_it_in_a_branch():
    """A function whose reads are not control outputs counts as finished, for later operations, before it reads."""
    keras.utils.set_random_seed(3)
    with helpers.scope(helpers.strategy("mirrored2")):
        model = CustomStep([keras.Input((5,)), spectral(), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    model.fit(X, Y, verbose=0)
    found = 0
    for function in model.train_function.graph().as_graph_def(add_shapes=False).library.function:
        reads = {node.name for node in function.node_def if node.op == "ReadVariableOp"}
        assert reads <= set(function.control_ret.values()), function.signature.name
        found += bool(reads) and "cond" in function.signature.name
    assert found >= 2


@pytest.mark.long
def test_weight_that_a_layer_assigned_is_as_before_where_the_step_is_skipped():
    keras.utils.set_random_seed(3)
    model = unisono.Sequential(
        [keras.Input((5,)), keras.layers.Dense(6, "tanh"), spectral(), keras.layers.Dense(1)]
    )
    model.compile(unisono.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(0.01)), "mse")
    weights = [np.array(v) for v in model.variables]
    history = model.fit(X, np.full_like(Y, np.inf), batch_size=19, verbose=0).history
    assert history["skipped_steps"] == [1]
    helpers.assert_equal(model.variables, weights)


@pytest.mark.long
def test_no_step_leaves_ids_of_added_losses_which_other_tensors_may_get():
    """Keras finds the losses that a layer adds by tensor id: a stale id assigns another tensor's loss to the layer."""
    for replicas in ("none", "mirrored2"):
        keras.utils.set_random_seed(3)
        with helpers.scope(helpers.strategy(replicas)):
            layers = [AddsLosses(), keras.layers.Dense(1, activity_regularizer="l2"), AddsLosses()]
            model = unisono.Sequential([keras.Input((5,)), *layers])
            model.compile("sgd", "mse")
        model.fit(X[:8], Y[:8], batch_size=4, verbose=0)
        model.evaluate(X[:8], Y[:8], verbose=0)
        assert [layer._loss_ids for layer in layers] == [set()] * 3, replicas
