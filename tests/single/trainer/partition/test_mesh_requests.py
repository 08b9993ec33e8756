"""What else a script can ask of a mesh: own loops, layouts of outputs, Keras' own scope; and what it cannot."""

from __future__ import annotations

import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from meshes import check_equal, distribution_for, float64, strategy_for  # noqa: F401  (a fixture)

import unisono
from unisono.distribute import strategy_of
from unisono.distribute.workers.cluster import ClusterError

R = np.random.default_rng(0)
X = R.normal(size=(9, 4))
MLP = {".*up/kernel": (None, "model"), ".*up/bias": ("model",), ".*down/kernel": ("model", None)}


def mlp(rate=0.0):
    """With dropout it is comparable on one batch axis alone: replicas with other samples draw other numbers."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    h = keras.layers.Dense(8, "tanh", name="up")(inputs)
    h = keras.layers.Dropout(rate, seed=3)(keras.layers.BatchNormalization(synchronized=True)(h))
    return unisono.Model(inputs, keras.layers.Dense(2, name="down")(h))


def run_loop(strategy, parts, rate=0.0):
    """Two steps of a custom loop; each replica gets its number of samples. Returns all that they give."""
    with strategy.scope():
        model = mlp(rate)
        optimizer = unisono.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.5)
        model.compile(optimizer, "mse")

    @unisono.replica_step
    def step(x, factor):
        with tf.GradientTape() as tape:
            out = model(x, training=True)
            loss = factor * tf.reduce_mean(out**2) + tf.reduce_sum(tf.reduce_mean(out, 0) ** 2)
        optimizer.minimize(loss, model.trainable_variables, tape=tape)
        return loss, out

    @tf.function
    def run(x):
        return strategy.run(step, args=(x, 0.5))

    starts = np.cumsum([0, *parts])
    given = [tf.constant(X[a:b]) for a, b in itertools.pairwise(starts)]
    x = given[0]
    if len(given) > 1:
        x = strategy.experimental_distribute_values_from_function(
            lambda context: given[context.replica_id_in_sync_group]
        )
    found = []
    for _ in range(2):
        loss, outputs = map(strategy.experimental_local_results, run(x))
        assert [len(each) for each in outputs] == list(parts)
        found += [sum(each.numpy() for each in loss), np.concatenate(outputs)]
    return [*found, *model.get_weights(), *[v.numpy() for v in optimizer.variables]]


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((2, 2), (2, 3, 4, 0)), ((1, 4), (5, 0, 3, 1)), ((2, 2), (0, 0, 4, 5)), ((1, 2), (9, 0))],
    ids=str,
)
@pytest.mark.long
def test_own_loop_on_a_mesh_computes_the_global_batch_of_all_replicas(shape, parts):
    rate = 0.3 if shape[0] == 1 else 0.0
    expected = run_loop(tf.distribute.get_strategy(), (9,), rate)
    check_equal(run_loop(strategy_for(shape, MLP), parts, rate), expected)


@pytest.mark.long
def test_own_loop_on_three_axes_keeps_the_order_of_the_samples():
    strategy = strategy_for((1, 2, 2), {".*up/kernel": ("expert", "model")}, ("batch", "expert", "model"))
    check_equal(run_loop(strategy, (3, 1, 0, 5)), run_loop(tf.distribute.get_strategy(), (9,)))


def test_own_loop_without_a_graph_raises():
    strategy = strategy_for((1, 2), MLP)
    with strategy.scope():
        model = mlp()
    inside = unisono.replica_step(lambda x: tf.reduce_sum(model(x)))
    with pytest.raises(ValueError, match=r"would run on one replica.*`tf.function` around `strategy.run`"):
        strategy.run(inside, args=(tf.constant(X),))
    with pytest.raises(
        ValueError, match=r"'up/kernel:0' is divided over a mesh, and was read.*`unisono.replica_step`"
    ):
        strategy.run(lambda: model.get_layer("up").kernel + 0.0)


def fitted(model):
    model.compile(unisono.optimizers.Adam(0.05), "mse", jit_compile=False)
    history = model.fit(X, X[:, :2], batch_size=4, shuffle=False, verbose=0).history
    return [*history.values(), *model.get_weights()]


def test_layouts_of_outputs_are_requests_that_change_no_number():
    distribution = distribution_for(
        (2, 2), MLP | {"up/output": ("batch", "model"), ".*down.*/output": ("batch", None)}
    )
    expected = fitted(mlp())
    with distribution.scope(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model = mlp()
        found = fitted(model)
        assert model(tf.constant(X)).shape == (9, 2)  # the layers ask for the layouts of their outputs
        tensor = keras.ops.ones((4, 2))
        assert (
            keras.distribution.distribute_tensor(tensor, keras.distribution.TensorLayout(("batch", None)))
            is tensor
        )
    check_equal(found, expected)


@pytest.mark.long
def test_model_in_the_scope_of_a_model_parallel_distribution_has_its_layouts():
    expected = fitted(mlp())
    with distribution_for((2, 2), MLP).scope():
        model = mlp()
    check_equal(fitted(model), expected)
    assert [tuple(part.shape) for part in model.get_layer("up").kernel._value.shards] == [(4, 4)] * 4


def test_pattern_of_an_output_that_does_not_exist_warns():
    with strategy_for((1, 2), {"upper/output": ("batch", "model")}).scope():
        model = mlp()
    with pytest.warns(UserWarning, match="'upper/output'.*matches no variable and no output.*'up/output'"):
        fitted(model)


def test_gradient_aggregator_on_divided_weights_names_the_weight_and_its_shape():
    with strategy_for((1, 2), MLP).scope():
        model = mlp()
        model.compile(unisono.optimizers.SGD(0.1, gradient_aggregator=lambda pairs: pairs), "mse")
    with pytest.raises(
        ValueError, match=r"'up/kernel' of shape \(4, 8\).*`gradient_aggregator`.*mesh that divides"
    ):
        model.fit(X, X[:, :2], verbose=0)


def test_central_storage_in_a_distribution_raises():
    keras.distribution.set_distribution(distribution_for((1, 2), MLP))
    strategy = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    with strategy.scope():
        model = mlp()
        with pytest.raises(ValueError, match=r"ModelParallel.*CentralStorage"):
            model.compile("sgd", "mse")


def test_distribution_in_a_cluster_with_parameter_servers_raises(monkeypatch):
    jobs = '{"worker": ["a:1"], "ps": ["b:1"], "chief": ["c:1"]}'
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {jobs}, "task": {{"type": "chief", "index": 0}}}}')
    with pytest.raises(ClusterError, match=r"ModelParallel.*parameter servers.*start only workers"):
        strategy_of(distribution_for((1, 2), MLP))
