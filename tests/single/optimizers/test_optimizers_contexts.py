"""One optimizer in all contexts: first use in a traced step, in loops, conditionals, XLA, and across replicas."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono import optimizers

START = np.array([1.0, -2.0])


def quadratic_step(variable, optimizer):
    """One gradient step on |v|^2 / 2 / replicas: the same for any number of replicas."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable**2) / 2 / replicas
        optimizer.minimize(loss, [variable], tape=tape)

    return step


def make(strategy=None, build=False, **options):
    with helpers.scope(strategy):
        variable = keras.Variable(START, dtype="float64", name="v")
        optimizer = optimizers.Adam(0.1, **options)
        if build:
            optimizer.build([variable])
    return variable, optimizer


@pytest.fixture(scope="module")
def after_four_steps():
    variable, optimizer = make()
    for _ in range(4):
        quadratic_step(variable, optimizer)()
    return variable.numpy()


def check(variable, optimizer, expected, strategy=None):
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-12)
    assert optimizer.iterations.numpy() == 4
    if strategy is not None:
        assert helpers.copies_are_equal([variable, *optimizer.variables], strategy)


def take_four_steps(strategy, variable, optimizer, way="traced step"):
    """Four steps, each called eagerly or traced, or all in a loop in one graph."""

    def step():
        on_replica = lambda: quadratic_step(variable, optimizer)()  # noqa: E731
        on_replica() if strategy is None else strategy.run(on_replica)

    @tf.function
    def in_a_loop():
        for _ in tf.range(4):
            step()

    if way == "loop in the graph":
        in_a_loop()
        return
    function = step if way == "eager step" else tf.function(step)
    for _ in range(4):
        function()


WAYS = {
    "traced step": ["none", "one", "mirrored1", "mirrored2", "mirrored3", "central2"],
    "loop in the graph": ["none", "mirrored2", "central2"],
    "eager step": ["mirrored2", "central2"],
}


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in WAYS.items() for name in names])
def test_first_use_inside_of_steps(way, name, after_four_steps):
    strategy = helpers.strategy(name)
    variable, optimizer = make(strategy)
    take_four_steps(strategy, variable, optimizer, way)
    check(variable, optimizer, after_four_steps, strategy)


def test_optimizer_created_outside_of_the_scope_moves_into_the_strategy(after_four_steps):
    strategy = helpers.mirrored(2)
    variable, _ = make(strategy)
    optimizer = optimizers.Adam(0.1)
    take_four_steps(strategy, variable, optimizer)
    check(variable, optimizer, after_four_steps, strategy)
    assert [v.path.split("/")[-1] for v in optimizer.variables[:2]] == ["iteration", "learning_rate"]


def four_steps_in_one_graph(jit, options):
    variable, optimizer = make(**options)

    @tf.function(jit_compile=jit)
    def four():
        for _ in tf.range(4):
            quadratic_step(variable, optimizer)()

    four()
    return [x.numpy() for x in [variable, *optimizer.variables]]


@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 2, "use_ema": True, "ema_overwrite_frequency": 2}]
)
def test_first_use_under_xla(options):
    results = [four_steps_in_one_graph(jit, options) for jit in (False, True)]
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_inside_of_a_conditional_in_replica_context():
    strategy = helpers.mirrored(2)
    variable, optimizer = make(strategy, use_ema=True, ema_overwrite_frequency=1)

    @tf.function
    def step(wanted):
        def apply():
            optimizer.apply_gradients([(tf.ones([2], tf.float64), variable)], skip_gradients_aggregation=True)
            return True

        strategy.run(lambda: tf.cond(wanted, apply, lambda: False))

    for wanted in (True, False, True):
        step(tf.constant(wanted))
    assert optimizer.iterations.numpy() == 2
    assert helpers.copies_are_equal([variable, *optimizer.variables], strategy)


@pytest.mark.parametrize("name", ["mirrored2", "central2", "one"])
@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_cross_replica_context_takes_totals_and_parts(name, in_graph):
    strategy = helpers.strategy(name)
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        v = keras.Variable([0.0, 0.0])
        optimizer = optimizers.SGD(1.0)
    parts = strategy.experimental_distribute_values_from_function(
        lambda context: tf.fill([2], context.replica_id_in_sync_group + 1.0)
    )

    def apply():
        with strategy.scope():
            optimizer.apply_gradients([(tf.ones([2]), v)])
            optimizer.apply_gradients([(parts, v)])

    (tf.function(apply) if in_graph else apply)()
    np.testing.assert_array_equal(v.numpy(), -np.full(2, 1.0 + sum(range(1, replicas + 1))))
    assert optimizer.iterations.numpy() == 2


def test_mirrored_variable_outside_of_the_scope_updates_every_copy():
    strategy = helpers.mirrored(2)
    variable, optimizer = make(strategy)
    optimizer.apply_gradients([(tf.ones([2], tf.float64), variable)])
    assert helpers.copies_are_equal([variable, *optimizer.variables], strategy)
    assert optimizer.iterations.numpy() == 1
    assert int(optimizer.iterations) == 1 and float(optimizer.learning_rate) == pytest.approx(0.1)


def test_plain_tensorflow_variables_under_a_strategy(after_four_steps):
    strategy = helpers.mirrored(2)
    with strategy.scope():
        variable, optimizer = tf.Variable(START), optimizers.Adam(0.1)
    take_four_steps(strategy, variable, optimizer)
    np.testing.assert_allclose(variable.numpy(), after_four_steps, rtol=1e-12)


def test_two_optimizers_in_one_step(after_four_steps):
    strategy = helpers.mirrored(2)
    (a, first), (b, second) = make(strategy), make(strategy)

    @tf.function
    def step():
        def on_replica():
            quadratic_step(a, first)()
            quadratic_step(b, second)()

        strategy.run(on_replica)

    for _ in range(4):
        step()
    check(a, first, after_four_steps, strategy)
    check(b, second, after_four_steps, strategy)


def test_final_averages_are_written_to_every_copy():
    strategy = helpers.mirrored(2)
    variable, optimizer = make(strategy, use_ema=True, ema_momentum=0.5)
    for _ in range(3):
        strategy.run(lambda: quadratic_step(variable, optimizer)())
    average = optimizer._model_variables_moving_average[0].numpy()
    optimizer.finalize_variable_values([variable])
    np.testing.assert_array_equal(variable.numpy(), average)
    assert helpers.copies_are_equal([variable], strategy)


@pytest.mark.parametrize("replicas", [1, 3])
def test_multi_optimizer_on_replicas(replicas):
    strategy = helpers.mirrored(replicas)
    with strategy.scope():
        a, b = keras.Variable([1.0], name="a"), keras.Variable([1.0], name="b")
        optimizer_map = optimizers.OptimizerMap(keras.optimizers.SGD(0.5, clipnorm=0.5))
        optimizer_map["b"] = keras.optimizers.Adam(0.5)
        optimizer = optimizers.adopt(keras.optimizers.MultiOptimizer(optimizer_map))

    @tf.function
    def step():
        gradient = tf.ones([1]) / replicas
        strategy.run(lambda: optimizer.apply_gradients([(gradient, a), (gradient, b)]))

    for _ in range(2):
        step()
    np.testing.assert_allclose([a.numpy()[0], b.numpy()[0]], [0.5, 0.0], atol=1e-4)  # Keras' Adam in float32
    assert [o.iterations.numpy() for o in [optimizer, *optimizer.optimizers]] == [2, 2, 2]
