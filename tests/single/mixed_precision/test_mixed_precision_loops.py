"""`LossScaleOptimizer` in custom loops: `strategy.run`, loops in the graph, cross-replica calls."""

from __future__ import annotations

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono import optimizers
from unisono.distribute.step_context import StepContext, step_scope
from unisono.mixed_precision import LossScaleOptimizer, skipped_steps


def number(variable):
    return variable.numpy().item()


def loop(strategy, targets, make_optimizer, in_scope=True):
    """Fits w to each replica's target in one graph, with one step for each row of the matrix `targets` [steps, replicas]."""
    with strategy.scope():
        w = keras.Variable([1.0, 2.0, 3.0], name="w")
        optimizer = make_optimizer() if in_scope else None
    optimizer = optimizer or make_optimizer()
    targets = tf.constant(targets, tf.float32)

    def step(target):
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(w.value - target[replica])) / tf.cast(tf.size(target), tf.float32)
        optimizer.minimize(loss, [w], tape=tape)

    @tf.function
    def train():
        for i in tf.range(tf.shape(targets)[0]):
            strategy.run(step, args=(targets[i],))

    train()
    return w, optimizer


def on_one_device(targets, make_optimizer):
    """The same steps on all targets at once."""
    w, optimizer = keras.Variable([1.0, 2.0, 3.0]), make_optimizer()
    for target in np.asarray(targets, np.float32):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(tf.square(w.value[None] - target[:, None]), axis=1))
        optimizer.minimize(loss, [w], tape=tape)
    return w, optimizer


def scaled_adam():
    return LossScaleOptimizer(optimizers.Adam(0.1, clipnorm=1.0), dynamic_growth_steps=2)


GOOD = [0.5, -1.0, 2.0]
BAD = np.inf


@pytest.mark.parametrize("name", ["mirrored3", "central2", "one"])
@pytest.mark.short("central2", "one")
def test_overflow_on_each_replica_in_turn_on_all_and_on_none(name):
    strategy = helpers.strategy(name)
    replicas = strategy.num_replicas_in_sync
    steps = [GOOD[:replicas]]
    for bad in range(replicas):
        steps.append([BAD if r == bad else GOOD[r] for r in range(replicas)])
        steps.append(GOOD[:replicas])
    steps += [[BAD] * replicas, [np.nan] * replicas, GOOD[:replicas], GOOD[:replicas]]
    w, optimizer = loop(strategy, steps, scaled_adam)
    expected, expected_optimizer = on_one_device(steps, scaled_adam)
    found = [w, *optimizer.variables], [expected, *expected_optimizer.variables]
    helpers.assert_close(*([np.array(v) for v in variables] for variables in found), helpers.FLOAT32)
    assert number(optimizer.skipped_steps) == replicas + 2
    assert number(optimizer.iterations) == replicas + 3
    assert helpers.copies_are_equal([w, *optimizer.variables], strategy)


def test_optimizer_made_outside_of_the_scope_and_first_used_inside_run():
    strategy = helpers.mirrored(2)
    steps = [GOOD[:2], [BAD, 1.0], GOOD[:2]]
    w, optimizer = loop(strategy, steps, scaled_adam, in_scope=False)
    expected, _ = on_one_device(steps, scaled_adam)
    helpers.assert_close(np.array(w), np.array(expected), helpers.FLOAT32)
    assert skipped_steps.step_logs(optimizer) == {"loss_scale": 2.0**14, "skipped_steps": 1}
    assert helpers.copies_are_equal([w, *optimizer.variables], strategy)


def test_overflow_of_the_sum_alone_is_noticed():
    """Each replica's gradient fits into float16 but the sum does not: the finite check comes after the all-reduce."""
    strategy = helpers.mirrored(2)

    def make():
        inner = optimizers.SGD(1.0, gradient_aggregator=optimizers.HalfPrecisionAggregation("float16"))
        return LossScaleOptimizer(inner, initial_scale=2.0**15)

    w, optimizer = loop(strategy, [[2.5, 2.5], [2.0, 2.0]], make)  # 2^15 (1 - 2.5) = -49,152 on each replica
    assert number(optimizer.skipped_steps) == 1
    assert np.isfinite(np.array(w)).all()


def test_float16_variables_are_summed_in_float32():
    """40,000 + 40,000 overflows float16; unscaled it fits again. A gradient that does not fit skips the update."""
    strategy = helpers.mirrored(2)
    with strategy.scope():
        w = keras.Variable([30000.0], dtype="float16")
        optimizer = LossScaleOptimizer(optimizers.SGD(0.25), 4.0)

    @tf.function
    def step():
        strategy.run(lambda: optimizer.apply([tf.constant([40000.0], tf.float16)], [w]))

    step()
    assert number(optimizer.skipped_steps) == 0
    assert np.array(w).item() == 24992.0, "the float16 next to 25,000"
    optimizer.dynamic_scale.assign(1.0)
    step()
    assert number(optimizer.skipped_steps) == 1
    assert np.array(w).item() == 24992.0


def test_apply_in_cross_replica_context():
    strategy = helpers.mirrored(2)
    with strategy.scope():
        w = keras.Variable([1.0])
        optimizer = LossScaleOptimizer(optimizers.SGD(1.0), 2.0)
        per_replica = strategy.run(lambda: tf.constant([2.0]))
        optimizer.apply_gradients([(per_replica, w)])
        assert np.array(w).item() == -1.0, "(2 + 2) / 2"
        optimizer.apply_gradients([(tf.constant([np.nan]), w)])
    assert np.array(w).item() == -1.0
    assert (number(optimizer.skipped_steps), number(optimizer.dynamic_scale)) == (1, 1.0)


@pytest.mark.parametrize("bad_call", [0, 3])
def test_accumulation_under_a_strategy_skips_whole_updates(bad_call):
    """Calls 0, 1 make the first update and 2, 3 the second; an overflow in a call skips its entire update."""
    steps = np.tile(np.array(GOOD[:2], np.float32), (6, 1))
    steps[bad_call, 1] = BAD

    def make(k=2):
        return LossScaleOptimizer(optimizers.SGD(0.5, momentum=0.9, gradient_accumulation_steps=k))

    w, optimizer = loop(helpers.mirrored(2), steps, make)
    expected, _ = on_one_device([GOOD[:2]] * 2, lambda: LossScaleOptimizer(optimizers.SGD(0.5, momentum=0.9)))
    helpers.assert_close(np.array(w), np.array(expected), helpers.FLOAT32)
    assert skipped_steps.step_logs(optimizer) == {"loss_scale": 2.0**14, "skipped_steps": 1}


def test_several_optimizers_behind_one_scale_share_a_finite_check():
    a, b = keras.Variable([1.0], name="a"), keras.Variable([1.0], name="b")
    parts = optimizers.OptimizerMap(optimizers.SGD(1.0))
    parts["b"] = optimizers.Adam(1.0)
    optimizer = LossScaleOptimizer(optimizers.MultiOptimizer(parts))
    optimizer.apply([tf.constant([np.nan]), tf.constant([1.0])], [a, b])
    np.testing.assert_array_equal([np.array(a), np.array(b)], [[1.0], [1.0]])
    optimizer.apply([tf.constant([2.0**14]), tf.constant([2.0**14])], [a, b])
    np.testing.assert_allclose([np.array(a), np.array(b)], [[0.0], [0.0]], atol=1e-4)


@pytest.mark.parametrize("in_graph", [False, True])
def test_two_losses_of_one_optimizer_are_unscaled_alike(in_graph):
    """The first gradient overflows and halves the scale; the second belongs to a loss with the old scale."""
    a, b = keras.Variable([1.0]), keras.Variable([1.0])
    optimizer = LossScaleOptimizer(optimizers.SGD(1.0))
    optimizer.build([a, b])

    def step():
        with tf.GradientTape(persistent=True) as tape:
            first = optimizer.scale_loss(tf.reduce_sum(a.value) * np.inf)
            second = optimizer.scale_loss(tf.reduce_sum(b.value) * 0.25)
        optimizer.apply_gradients([(tape.gradient(first, a.value), a)])
        optimizer.apply_gradients([(tape.gradient(second, b.value), b)])

    if in_graph:
        tf.function(step)()
    else:
        with step_scope(StepContext(replica_id=0, num_replicas=1, samples=1, global_samples=1)):
            step()
    assert (np.array(a).item(), np.array(b).item()) == (1.0, 0.75)


SERVERS = f"""{helpers.SERVERS}
with strategy.scope():
    v = keras.Variable(np.ones(2, "float32"))
    optimizer = mixed_precision.LossScaleOptimizer(optimizers.SGD(2.0**-8))

@tf.function
def step(factor):
    def on_worker(factor):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v.value) * factor
        optimizer.minimize(loss, [v], tape=tape)
    strategy.run(on_worker, args=(factor,))

for i in range(200):
    coordinator.schedule(step, args=(tf.constant(np.inf if i % 10 == 3 else 1.0, tf.float32),))
coordinator.join()
print("logs", mixed_precision.skipped_steps.step_logs(optimizer), optimizer.iterations.numpy(), v.numpy().tolist())
"""


@pytest.mark.process
def test_parameter_servers_lose_no_halving_no_count_and_no_update(forked, tmp_path):
    """200 steps of three concurrent workers, 20 with overflow: S = 2^(15 - 20), and v = 1 - 180 / 256 exactly."""
    (tmp_path / "program.py").write_text(SERVERS)
    printed = forked.run(tmp_path / "program.py", folder=tmp_path)
    expected = f"logs {{'loss_scale': {2.0**-5}, 'skipped_steps': 20}} 180 {[1 - 180 / 256] * 2}"
    assert expected in printed, printed[-3000:]


def test_five_thousand_steps_in_one_graph_grow_the_scale_as_computed():
    """Two doublings in 5,000 steps with N = 2,000, and an overflow at step 4,500 that reverts one."""
    w, optimizer = keras.Variable([0.0]), LossScaleOptimizer(optimizers.SGD(1.0), 2.0**10)
    optimizer.build([w])

    @tf.function
    def train():
        for i in tf.range(5000):
            gradient = tf.where(tf.equal(i, 4500), np.float32(np.inf), np.float32(0.001))
            optimizer.apply([gradient[None] * optimizer.dynamic_scale.value], [w])

    train()
    assert skipped_steps.step_logs(optimizer) == {"loss_scale": 2.0**11, "skipped_steps": 1}
    assert (number(optimizer.iterations), number(optimizer.step_counter)) == (4999, 499)
    np.testing.assert_allclose(np.array(w), [-4.999], rtol=1e-3)
